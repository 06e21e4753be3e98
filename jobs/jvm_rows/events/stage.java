// The event that tells Spark's listeners of a stored stage. The driver compiles this class alone.

public Object generate(Object[] references) {
  return new DurableShuffleEvents((org.apache.spark.SparkContext) references[0]);
}

/** Posts events to the listeners of one application. */
public static final class DurableShuffleEvents {
  private final org.apache.spark.SparkContext context;
  private final com.fasterxml.jackson.databind.ObjectMapper json =
      new com.fasterxml.jackson.databind.ObjectMapper();

  public DurableShuffleEvents(org.apache.spark.SparkContext context) { this.context = context; }

  public void post(String text) throws java.io.IOException {
    java.util.Map stage = (java.util.Map) json.readValue(text, java.util.Map.class);
    context.listenerBus().post(new DurableShuffleStage(stage, text));
  }
}

/** A stage is sealed. Spark's event log takes the public fields, other listeners `toString()`. */
public static final class DurableShuffleStage
    implements org.apache.spark.scheduler.SparkListenerEvent {
  public final java.util.Map stage;
  private final String text;

  public DurableShuffleStage(java.util.Map stage, String text) {
    this.stage = stage;
    this.text = text;
  }

  public String toString() { return text; }
}
