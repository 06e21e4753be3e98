// Frames to rows. Each input row is a block: one binary that `blocks.py` made. The blocks of a task
// hold a stream of frames, cut anywhere. The output is Spark's ColumnarBatchRow over the columns of
// the frame at hand.
//
// The other files of this folder belong to the same text. README.md, one folder up, says what
// Janino can compile.

/** References: the kinds of all columns (kinds.py), the schema, and a limit in bytes. */
public Object generate(Object[] references) { return new Decode(references); }

/** The iterator of one task. It checks that every block arrived, and all rows that were sent. */
static final class Decode extends org.apache.spark.sql.execution.BufferedRowIterator {
  private final Arrow arrow;
  private final org.apache.spark.sql.vectorized.ColumnarBatchRow row;
  private Blocks blocks;
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
    row = new org.apache.spark.sql.vectorized.ColumnarBatchRow(columns);
  }

  public void init(int number, scala.collection.Iterator[] inputs) {
    partitionIndex = number;
    blocks = new Blocks(inputs[0], number);
  }

  // The base class would put each row into a queue and take it out again.
  public boolean hasNext() throws java.io.IOException {
    while (next == rows) if (!load()) return false;
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
    if (!blocks.nextFrame()) return false;
    arrow.open(blocks.message, blocks.length, blocks.rows, blocks.frames);
    rows = blocks.rows;
    next = 0;
    return true;
  }
}

/** Joins the blocks of a task to messages, and counts blocks, frames and rows. */
static final class Blocks {
  private static final int HEADER_BYTES = 16, LAST = 1, FRAME_MAGIC = 0x46534489;
  private static final int STEP_BYTES = 1 << 20, KEPT_BYTES = 1 << 20;
  private static final int LONGEST_BYTES = Integer.MAX_VALUE - 64;  // of a Java array

  byte[] message = new byte[0];
  int length = 0;
  int rows = 0;
  long frames = 0;
  private final scala.collection.Iterator input;
  private final int partition;
  private final byte[] header = new byte[HEADER_BYTES];
  private Object block = null;                 // base object of the block at hand
  private long at = 0, left = 0;               // its next byte, and how many there are
  private long number = 0, seen = 0;           // blocks and rows so far
  private boolean ended = false;

  Blocks(scala.collection.Iterator input, int partition) {
    this.input = input;
    this.partition = partition;
  }

  /** Puts the next frame into `message`, `length` and `rows`; returns false behind the last one. */
  boolean nextFrame() {
    while (left == 0 && !ended) take();
    if (ended) return false;
    fill(header, 0, HEADER_BYTES);
    int count = Platform.getInt(header, Platform.BYTE_ARRAY_OFFSET + 4);
    long size = Platform.getLong(header, Platform.BYTE_ARRAY_OFFSET + 8);
    if (Platform.getInt(header, Platform.BYTE_ARRAY_OFFSET) != FRAME_MAGIC || count < 0)
      throw lost("no frame begins in block " + (number - 1));
    if (size < 0 || size > LONGEST_BYTES)
      throw lost("frame of " + size + " bytes, Java holds at most " + LONGEST_BYTES);
    length = (int) size;
    read();
    rows = count;
    seen += count;
    frames++;
    return true;
  }

  /** Reads `length` bytes into `message`. It grows with what arrives, not with what is stated. */
  private void read() {
    if (message.length > KEPT_BYTES && message.length / 8 > length) message = new byte[0];
    int have = 0;
    while (have < length) {
      if (have == message.length) {
        long wanted = Math.max(2L * have, Math.max(left, STEP_BYTES) + have);
        wanted = Math.min(wanted + wanted / 8, length + 7L);
        message = java.util.Arrays.copyOf(message, (int) wanted);
      }
      int step = Math.min(message.length, length) - have;
      fill(message, have, step);
      have += step;
    }
  }

  private void fill(byte[] into, int place, int count) {
    while (count > 0) {
      while (left == 0 && !ended) take();
      if (ended) throw lost("the last block came in the middle of a frame");
      int step = (int) Math.min(left, count);
      Platform.copyMemory(block, at, into, Platform.BYTE_ARRAY_OFFSET + place, step);
      place += step;
      count -= step;
      at += step;
      left -= step;
    }
  }

  /** Takes the next block; behind the last one, compares the sums and sets `ended`. */
  private void take() {
    if (!input.hasNext()) throw lost("the last block is missing, " + number + " came before it");
    InternalRow given = (InternalRow) input.next();
    if (given.isNullAt(0)) throw lost("a block is null");
    if (given instanceof UnsafeRow && ((UnsafeRow) given).getBaseObject() instanceof byte[]) {
      UnsafeRow row = (UnsafeRow) given;       // its bytes stay until the next block is taken
      long place = row.getLong(0);
      block = row.getBaseObject();
      at = row.getBaseOffset() + (place >>> 32);
      left = place & 0xffffffffL;
      if ((place >>> 32) + left > row.getSizeInBytes()) throw lost("a block is not in its row");
    } else {
      byte[] bytes = given.getBinary(0);
      block = bytes;
      at = Platform.BYTE_ARRAY_OFFSET;
      left = bytes.length;
    }
    if (left < HEADER_BYTES) throw lost("block of " + left + " bytes");
    long found = Platform.getLong(block, at);
    long flags = Platform.getLong(block, at + 8);
    at += HEADER_BYTES;
    left -= HEADER_BYTES;
    if (found != number) throw lost("expected block " + number + ", found " + found);
    number++;
    if (flags == LAST) end();
    else if (flags != 0) throw lost("block " + found + " has unknown flags " + flags);
  }

  private void end() {
    if (left != HEADER_BYTES) throw lost("the last block has " + left + " bytes");
    long sentFrames = Platform.getLong(block, at);
    long sentRows = Platform.getLong(block, at + 8);
    if (sentFrames != frames || sentRows != seen)
      throw lost("expected " + sentFrames + " frames of " + sentRows + " rows, found "
          + frames + " of " + seen);
    if (input.hasNext()) throw lost("a block follows the last one");
    left = 0;
    block = null;
    message = new byte[0];
    ended = true;
  }

  private IllegalStateException lost(String what) {
    return new IllegalStateException("rows were lost between a Python worker and Spark's JVM: "
        + what + ": partition=" + partition);
  }
}
