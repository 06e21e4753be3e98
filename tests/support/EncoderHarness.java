import org.apache.spark.TaskContext;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.memory.UnifiedMemoryManager;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.BufferedRowIterator;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Runs the encoder as one task, with a memory manager of its own. Columns: long, string, id. */
public class EncoderHarness {
  private final org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass code;
  private final StructType schema;
  UnifiedMemoryManager manager;
  TaskMemoryManager memory;
  TaskContextImpl context;
  public long most = 0; // bytes of Spark's memory that the task had at any time
  public long taken = 0; // bytes that the other consumer got
  public String failure = "";

  public EncoderHarness(String text, String json) throws Exception {
    java.util.Map none = new java.util.HashMap();
    code = (org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass)
               org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator
                   .compile(new org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment(
                       text, org.apache.spark.api.python.PythonUtils.toScalaMap(none)))
                   ._1();
    schema = (StructType) org.apache.spark.sql.types.DataType.fromJson(json);
  }

  /** Encodes rows into a file: segment, length of data or -1, data, the same of extents.

      Row i is (i, text of `length` letters, i % partitions); row `special` has `specialLength`
      letters. Before row `hogAt` another consumer of the task takes `hogBytes`; at row `killAt` the
      task is killed. Returns the bytes of Spark's memory that are still taken in the end. */
  public long run(Object[] references, String path, long sparkBytes, int rows, int length,
      int special, int specialLength, int hogAt, int hogBytes, int killAt, boolean unsafe)
      throws Exception {
    org.apache.spark.SparkConf conf = new org.apache.spark.SparkConf(false);
    manager = new UnifiedMemoryManager(conf, sparkBytes, sparkBytes / 2, 1);
    memory = new TaskMemoryManager(manager, 0L);
    context = context();
    org.apache.spark.TaskContext$.MODULE$.setTaskContext(context);
    most = taken = 0;
    failure = "";
    references[8] = schema;
    int last = schema.size() - 1;
    if (references[2].equals("computed"))
      references[9] = new org.apache.spark.sql.catalyst.expressions.BoundReference(
          last, schema.apply(last).dataType(), false);
    java.io.DataOutputStream out = new java.io.DataOutputStream(
        new java.io.BufferedOutputStream(new java.io.FileOutputStream(path), 1 << 20));
    try {
      BufferedRowIterator encoder = (BufferedRowIterator) code.generate(references);
      scala.collection.Iterator[] inputs = new scala.collection.Iterator[1];
      int partitions = ((Number) references[1]).intValue();
      inputs[0] = new Rows(
          this, rows, length, special, specialLength, hogAt, hogBytes, killAt, partitions, unsafe);
      encoder.init(3, inputs);
      while (encoder.hasNext()) {
        byte[] piece = ((InternalRow) encoder.next()).getBinary(0);
        out.writeInt(piece.length);
        out.write(piece);
      }
    } catch (Throwable e) {
      failure = e.toString();
    } finally {
      out.close();
      context.markTaskCompleted(scala.Option.empty());
      org.apache.spark.TaskContext$.MODULE$.unset();
    }
    return memory.getMemoryConsumptionForThisTask() - taken;
  }

  private TaskContextImpl context() throws Exception {
    java.lang.reflect.Constructor constructor = TaskContextImpl.class.getConstructors()[0];
    Class[] types = constructor.getParameterTypes();
    Object[] arguments = new Object[types.length];
    for (int i = 0; i < types.length; i++) {
      if (types[i] == int.class) arguments[i] = Integer.valueOf(0);
      else if (types[i] == long.class) arguments[i] = Long.valueOf(0L);
      else if (types[i] == TaskMemoryManager.class) arguments[i] = memory;
      else if (types[i] == java.util.Properties.class) arguments[i] = new java.util.Properties();
      else if (types[i] == org.apache.spark.executor.TaskMetrics.class)
        arguments[i] = new org.apache.spark.executor.TaskMetrics();
      else if (types[i] == scala.collection.immutable.Map.class)
        arguments[i] = org.apache.spark.api.python.PythonUtils.toScalaMap(new java.util.HashMap());
    }
    return (TaskContextImpl) constructor.newInstance(arguments);
  }

  /** The rows of one partition. */
  static class Rows extends scala.collection.AbstractIterator {
    private final EncoderHarness task;
    private final int rows, special, specialLength, hogAt, hogBytes, killAt, partitions;
    private final boolean unsafe;
    private final UTF8String text;
    private final UnsafeProjection projection;
    private int next = 0;

    Rows(EncoderHarness task, int rows, int length, int special, int specialLength, int hogAt,
        int hogBytes, int killAt, int partitions, boolean unsafe) {
      this.task = task;
      this.rows = rows;
      this.special = special;
      this.specialLength = specialLength;
      this.hogAt = hogAt;
      this.hogBytes = hogBytes;
      this.killAt = killAt;
      this.partitions = partitions;
      this.unsafe = unsafe;
      this.text = letters(length);
      this.projection = UnsafeProjection.create(task.schema);
    }

    private static UTF8String letters(int length) {
      byte[] data = new byte[length];
      for (int i = 0; i < length; i++) data[i] = (byte) ('a' + i % 7);
      return UTF8String.fromBytes(data);
    }

    public boolean hasNext() {
      task.most = Math.max(task.most, task.memory.getMemoryConsumptionForThisTask() - task.taken);
      if (next == hogAt && task.taken == 0) {
        task.taken =
            new org.apache.spark.unsafe.map.BytesToBytesMap(task.memory, hogBytes / 16, 1L << 20)
                .getTotalMemoryConsumption();
      }
      if (next == killAt) task.context.markInterrupted("killed on purpose");
      return next < rows;
    }

    public Object next() {
      UTF8String mine = next == special ? letters(specialLength) : text;
      Object[] values = new Object[] {Long.valueOf(next), mine, Integer.valueOf(next % partitions)};
      InternalRow row = new GenericInternalRow(values);
      next++;
      return unsafe ? projection.apply(row) : row;
    }
  }
}
