// Frames to rows. The frames of a task come from a Python worker, in blocks, or from files. The
// output is Spark's ColumnarBatchRow over the columns of the frame at hand.
//
// All files of this folder are one text. README.md says what Janino can compile.

/** References: the kinds of all columns (kinds.py), the schema, a limit in bytes, and for frames in
    files how to find them (files.py); without that, each input is a block, byte[] (blocks.py). */
public Object generate(Object[] references) { return new Decode(references); }

/** The iterator of one task. */
static final class Decode extends org.apache.spark.sql.execution.BufferedRowIterator {
  private final Arrow arrow;
  private final org.apache.spark.sql.vectorized.ColumnarBatchRow row;
  private final java.util.Map stored; // null if frames come in blocks
  private Frames frames;
  private int next = 0;
  private int rows = 0;

  Decode(Object[] references) {
    Kinds kinds = new Kinds((String) references[0]);
    org.apache.spark.sql.types.StructField[] fields =
        ((org.apache.spark.sql.types.StructType) references[1]).fields();
    Column[] columns = new Column[fields.length];
    for (int c = 0; c < columns.length; c++) columns[c] = kinds.column(fields[c].dataType());
    kinds.end();
    arrow = new Arrow(columns, ((Number) references[2]).longValue());
    stored = references.length > 3 ? (java.util.Map) references[3] : null;
    row = new org.apache.spark.sql.vectorized.ColumnarBatchRow(columns);
  }

  public void init(int number, scala.collection.Iterator[] inputs) {
    partitionIndex = number;
    if (stored == null) frames = new Blocks(inputs[0], number);
    else frames = new Stored(stored, number);
  }

  // The base class would put each row into a queue and take it out again.
  public boolean hasNext() throws java.io.IOException {
    while (next == rows)
      if (!load()) return false;
    return true;
  }

  public InternalRow next() {
    row.rowId = next++;
    return row;
  }

  protected void processNext() { throw new IllegalStateException("rows are taken with next()"); }

  private boolean load() {
    TaskContext task = TaskContext.get();
    if (task != null) task.killTaskIfInterrupted();
    if (!frames.next()) return false;
    arrow.open(frames);
    rows = frames.rows;
    next = 0;
    return true;
  }
}

/** The frames of a task, one after the other, joined if they continue. */
static abstract class Frames {
  static final int LONGEST_BYTES = Integer.MAX_VALUE - 64; // of a Java array
  private static final int STEP_BYTES = 1 << 20, KEPT_BYTES = 1 << 20;

  byte[] message = new byte[0]; // the body of the frame at hand
  int length = 0;
  int rows = 0;

  /** Takes the next frame; returns false behind the last one, when all of them have arrived. */
  abstract boolean next();

  /** Returns the error for a body that is damaged in spite of its checksum. */
  abstract RuntimeException damaged(String what);

  /** Lets go of a long array, if a message of `wanted` bytes or less comes next. */
  void shrink(int wanted) {
    if (message.length > KEPT_BYTES && message.length / 8 > wanted) message = new byte[0];
  }

  /** Makes room behind `have` bytes. The array grows with what arrives, not with what is stated.
      atHand: how many bytes are known to follow; most: how many there can be in all. */
  void grow(int have, long atHand, long most) {
    if (have < message.length) return;
    long wanted = Math.max(2L * have, Math.max(atHand, STEP_BYTES) + have);
    wanted = Math.min(wanted + wanted / 8, most + 7);
    message = java.util.Arrays.copyOf(message, (int) Math.min(wanted, LONGEST_BYTES));
  }
}
