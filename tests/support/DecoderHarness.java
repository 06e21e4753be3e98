// Runs the decoder in a JVM without Spark. Janino compiles this text, then the decoder's.

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;

public class DecoderHarness {
  private final org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass compiled;
  private final StructType schema;
  private final UnsafeProjection projection;
  private final Object[] references;
  public long damaged = 0, accepted = 0;
  public String firstOther = null;

  /** checked: whether each access to memory is checked, which is slower. */
  public DecoderHarness(String text, String kinds, String schemaJson, int mostBytes,
      boolean checked) throws Exception {
    org.codehaus.janino.ClassBodyEvaluator evaluator = new org.codehaus.janino.ClassBodyEvaluator();
    evaluator.setParentClassLoader(DecoderHarness.class.getClassLoader());
    evaluator.setClassName("org.apache.spark.sql.catalyst.expressions.GeneratedClass");
    evaluator.setDefaultImports(
        new String[] {checked ? "CheckedMemory" : "org.apache.spark.unsafe.Platform",
            "org.apache.spark.sql.catalyst.InternalRow",
            "org.apache.spark.sql.catalyst.expressions.UnsafeRow", "org.apache.spark.TaskContext"});
    evaluator.setExtendedClass(
        org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass.class);
    evaluator.cook("generated.java",
        checked
            ? text.replace(" Platform.", " CheckedMemory.").replace("(Platform.", "(CheckedMemory.")
            : text);
    compiled =
        (org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass) evaluator.getClazz()
            .newInstance();
    schema = (StructType) org.apache.spark.sql.types.DataType.fromJson(schemaJson);
    projection = UnsafeProjection.create(schema);
    references = new Object[] {kinds, schema, new Integer(mostBytes)};
  }

  /** Returns the rows of the blocks, as Spark's binary rows one after the other. */
  public byte[] rows(byte[][] blocks) throws Exception { return all(iterator(blocks)); }

  /** Returns the rows of a task that reads files, in the same form. */
  public byte[] stored(java.util.Map facts, int task) throws Exception {
    Object[] more = new Object[] {references[0], references[1], references[2], facts};
    org.apache.spark.sql.execution.BufferedRowIterator rows =
        (org.apache.spark.sql.execution.BufferedRowIterator) compiled.generate(more);
    rows.init(task, new scala.collection.Iterator[] {null});
    return all(rows);
  }

  private byte[] all(org.apache.spark.sql.execution.BufferedRowIterator rows) throws Exception {
    java.io.ByteArrayOutputStream found = new java.io.ByteArrayOutputStream();
    while (rows.hasNext()) {
      UnsafeRow row = projection.apply(rows.next());
      found.write(row.getBytes());
    }
    return found.toByteArray();
  }

  /** Returns the rows as text. They are copied, and shown when the last one was taken. */
  public String[] texts(byte[][] blocks) throws Exception {
    java.util.ArrayList kept = new java.util.ArrayList();
    org.apache.spark.sql.execution.BufferedRowIterator rows = iterator(blocks);
    while (rows.hasNext()) kept.add(((InternalRow) rows.next()).copy());
    String[] texts = new String[kept.size()];
    for (int i = 0; i < texts.length; i++)
      texts[i] = ((InternalRow) kept.get(i)).toSeq(schema).toString();
    return texts;
  }

  private org.apache.spark.sql.execution.BufferedRowIterator iterator(byte[][] blocks) {
    java.util.ArrayList rows = new java.util.ArrayList();
    for (int b = 0; b < blocks.length; b++) rows.add(blocks[b]);
    org.apache.spark.sql.execution.BufferedRowIterator found =
        (org.apache.spark.sql.execution.BufferedRowIterator) compiled.generate(references);
    scala.collection.Iterator input =
        scala.jdk.javaapi.CollectionConverters.asScala(rows.iterator());
    found.init(0, new scala.collection.Iterator[] {input});
    return found;
  }

  /** Reads `count` damaged copies of a block that holds a frame of `rows` rows. */
  public void fuzz(byte[] block, byte[] last, int frameAt, long seed, int count) throws Exception {
    java.util.Random random = new java.util.Random(seed);
    int metadata = org.apache.spark.unsafe.Platform.getInt(block, 16L + frameAt + 4);
    for (int i = 0; i < count; i++) {
      byte[] copy = (byte[]) block.clone();
      for (int harms = 1 + random.nextInt(3); harms > 0; harms--)
        harm(copy, frameAt, metadata, random);
      try {
        rows(new byte[][] {copy, last});
        accepted++;
      } catch (RuntimeException e) {
        String text = String.valueOf(e.getMessage());
        if (text.contains(".CorruptDataError: damaged frame: ")
            || text.startsWith("rows were lost"))
          damaged++;
        else other(e, seed, i);
      } catch (Throwable e) {
        other(e, seed, i);
      }
    }
  }

  private void other(Throwable e, long seed, int i) {
    java.io.StringWriter text = new java.io.StringWriter();
    e.printStackTrace(new java.io.PrintWriter(text));
    if (firstOther == null) firstOther = "seed " + seed + " input " + i + ": " + text;
  }

  private static void harm(byte[] block, int frameAt, int metadata, java.util.Random random) {
    int from = frameAt, length = block.length - from;
    int where = random.nextInt(10);
    if (where < 6) length = Math.min(length, metadata + 8);
    else if (where < 9) from += Math.min(metadata + 8, length - 8);
    length = block.length - from < length ? block.length - from : length;
    int place = from + random.nextInt(length);
    int[] numbers =
        new int[] {0, 1, -1, 127, 128, 255, 1 << 16, Integer.MAX_VALUE, Integer.MIN_VALUE};
    int number = random.nextBoolean() ? numbers[random.nextInt(numbers.length)] : random.nextInt();
    int width = random.nextInt(4);
    if (width == 0) block[place] = (byte) number;
    else if (width == 1) block[place] ^= (byte) (1 << random.nextInt(8));
    else if (place + 8 <= block.length && width == 2)
      org.apache.spark.unsafe.Platform.putInt(block, 16L + (place & ~3), number);
    else if ((place & ~7) + 8 <= block.length)
      org.apache.spark.unsafe.Platform.putLong(
          block, 16L + (place & ~7), random.nextBoolean() ? number : random.nextLong());
  }
}
