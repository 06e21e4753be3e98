// Frames from a Python worker, in the blocks that `blocks.py` makes.

/** Joins the blocks of a task to messages, and counts blocks, frames and rows. */
static final class Blocks extends Frames {
  private static final int HEADER_BYTES = 16, LAST = 1, FRAME_MAGIC = 0x46534489;
  private static final int PLACE_MAGIC = 0x43414c50;
  private long frames = 0;
  private String place = "its task"; // where the frames at hand are stored
  private long before = 0; // frames at other places
  private final scala.collection.Iterator input;
  private final int partition;
  private final byte[] header = new byte[HEADER_BYTES];
  private byte[] block = null; // the block at hand
  private long at = 0, left = 0; // its next byte, and how many there are
  private long number = 0, seen = 0; // blocks and rows so far
  private int magic = 0; // of the entry at hand
  private boolean ended = false;

  Blocks(scala.collection.Iterator input, int partition) {
    this.input = input;
    this.partition = partition;
  }

  boolean next() {
    while (entry()) {
      if (magic == FRAME_MAGIC) {
        seen += rows;
        frames++;
        return true;
      }
      place = new String(message, 0, length, java.nio.charset.StandardCharsets.UTF_8);
      before = frames;
    }
    return false;
  }

  RuntimeException damaged(String what) {
    return Failure.of("CorruptDataError",
        "damaged frame: " + what + ": frame " + (frames - before) + " of " + place);
  }

  /** Reads one entry, a frame or a place, into `message`; returns false behind the last one. */
  private boolean entry() {
    while (left == 0 && !ended) take();
    if (ended) return false;
    fill(header, 0, HEADER_BYTES);
    magic = Platform.getInt(header, Platform.BYTE_ARRAY_OFFSET);
    rows = Platform.getInt(header, Platform.BYTE_ARRAY_OFFSET + 4);
    long size = Platform.getLong(header, Platform.BYTE_ARRAY_OFFSET + 8);
    if ((magic != FRAME_MAGIC && magic != PLACE_MAGIC) || rows < 0)
      throw lost("no frame begins in block " + (number - 1));
    if (size < 0 || size > LONGEST_BYTES)
      throw lost("frame of " + size + " bytes, Java holds at most " + LONGEST_BYTES);
    length = (int) size;
    read();
    return true;
  }

  /** Reads `length` bytes into `message`. */
  private void read() {
    shrink(length);
    int have = 0;
    while (have < length) {
      grow(have, left, length);
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
    Object given = input.next();
    if (given == null) throw lost("a block is null");
    block = (byte[]) given;
    at = Platform.BYTE_ARRAY_OFFSET;
    left = block.length;
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
      throw lost("expected " + sentFrames + " frames of " + sentRows + " rows, found " + frames
          + " of " + seen);
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
