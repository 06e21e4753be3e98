// Frames from the files of a sealed stage. All that `read/extents.py` checks is checked here.

/** The frames of one task, in the order of `read_group`. */
static final class Stored extends Frames {
  private static final int HEADER_BYTES = 24, CHECKED_BYTES = 20, MAGIC = 0x46534489;
  private static final int CONTINUES = 1, ARROW = 1, KINDS = 3;
  private static final int BUFFER_BYTES = 256 << 10, AHEAD_BYTES = 32 << 10, STEP_BYTES = 1 << 20;

  private final Folder folder;
  private final Index index;
  private final Note note;
  private final long mostBody, mostRecord; // bytes
  private final byte[] address = new byte[32], header = new byte[HEADER_BYTES];
  private final byte[] buffer = new byte[BUFFER_BYTES];
  private final java.util.zip.CRC32 crc = new java.util.zip.CRC32();
  private String buffered = null; // key of the object whose bytes are in `buffer`
  private long bufferAt = 0, bufferEnd = 0;
  private long at = 0, end = 0, size = 0; // in the segment: next byte, end of extent, of all
  private long begin = 0, frameAt = 0; // record and frame at hand, from the extent's start
  private long ordinal = 0, delivered = 0;
  private int flags = 0, bodyBytes = 0;

  Stored(java.util.Map how, int task) {
    folder = new Folder((String) how.get("root"), ((Number) how.get("call_seconds")).doubleValue());
    index = new Index(folder, how, task);
    note = new Note((String) how.get("root"), how);
    mostBody = ((Number) how.get("max_frame_bytes")).longValue();
    mostRecord = Math.min(((Number) how.get("max_record_bytes")).longValue(), LONGEST_BYTES);
    String stage = (String) how.get("incarnation");
    for (int i = 0; i < 16; i++)
      address[i] = (byte) Integer.parseInt(stage.substring(2 * i, 2 * i + 2), 16);
    TaskContext context = TaskContext.get();
    if (context == null) return; // the driver tries the decoder out
    final Folder used = folder;
    context.addTaskCompletionListener(new org.apache.spark.util.TaskCompletionListener() {
      public void onTaskCompletion(TaskContext ended) { used.close(); }
    });
  }

  boolean next() {
    try {
      return advance();
    } catch (RuntimeException e) {
      if (Failure.isDamage(e)) note.append();
      throw e;
    }
  }

  private boolean advance() {
    if (at == end && !begin()) return false;
    record
    ();
    delivered += rows;
    if (delivered > index.rows || at == end && delivered != index.rows)
      throw corrupt("rows delivered are not rows committed: expected="
          + Long.toUnsignedString(index.rows) + " found=" + delivered);
    return true;
  }

  RuntimeException damaged(String what) {
    return corrupt("frame at byte " + begin + ": damaged frame: " + what);
  }

  private boolean begin() {
    if (!index.next()) {
      folder.close();
      return false;
    }
    size = folder.sizeWith(index.key, index.offset, index.length);
    at = index.offset;
    end = at + index.length;
    ordinal = index.ordinal;
    delivered = 0;
    Platform.putInt(address, Platform.BYTE_ARRAY_OFFSET + 16, index.producer);
    Platform.putInt(address, Platform.BYTE_ARRAY_OFFSET + 20, index.subpartition);
    return true;
  }

  /** Reads one frame, or those that continue each other, into `message`. */
  private void record() {
    begin = at - index.offset;
    int kind = 0;
    length = 0;
    do {
      if (kind != 0 && at == end)
        throw corrupt(
            "continued record: the input ended after " + length + " bytes, expected more");
      int found = header();
      body();
      if (kind != 0 && found != kind)
        throw corrupt("continued record: expected kind " + kind + ", found " + found);
      kind = found;
      length += bodyBytes;
    } while ((flags & CONTINUES) != 0);
    if (kind != ARROW)
      throw incompatible(
          "frame at byte " + begin + ": frame of kind " + kind + " in an Arrow stage");
    ordinal += rows;
  }

  /** Reads a header, sets `rows`, `flags` and `bodyBytes`, and returns the kind. */
  private int header() {
    frameAt = at - index.offset;
    String where = "frame at byte " + frameAt + ": ";
    int have = (int) Math.min(end - at, HEADER_BYTES);
    fill(header, 0, have);
    boolean begun = true;
    for (int i = 0; i < Math.min(4, have); i++)
      begun = begun && header[i] == (byte) (MAGIC >> 8 * i);
    int magic = have < 4 ? 0 : Index.int4(header, 0);
    if (!begun) throw corrupt(where + "magic: expected " + hex(MAGIC) + ", found " + hex(magic));
    if (have < HEADER_BYTES) throw ended(HEADER_BYTES, have);
    crc.reset();
    crc.update(header, 0, CHECKED_BYTES);
    int stated = Index.int4(header, CHECKED_BYTES), found = (int) crc.getValue();
    if (stated != found)
      throw corrupt(where + "header CRC: expected " + hex(stated) + ", found " + hex(found));
    int kind = header[4] & 255;
    if (kind < 1 || kind > KINDS)
      throw incompatible(where + "kind " + kind + " is unknown, this version knows 1 to " + KINDS);
    flags = header[5] & 255;
    if ((flags & ~CONTINUES) != 0 || header[6] != 0 || header[7] != 0)
      throw incompatible(where + "expected flags within 0x01 and reserved 0, found flags " + flags);
    long size = Index.int4(header, 12) & 0xffffffffL;
    if (size > mostBody)
      throw corrupt(where + "body length: expected at most " + mostBody + ", found " + size);
    if (length + size > mostRecord)
      throw corrupt(where + "continued record: expected at most " + mostRecord + " bytes, found "
          + (length + size));
    long padded = size + 7 & ~7L;
    if (padded > end - at) throw ended(HEADER_BYTES + padded, HEADER_BYTES + end - at);
    bodyBytes = (int) size;
    rows = Index.int4(header, 8);
    if (rows < 0) throw corrupt(where + (rows & 0xffffffffL) + " rows");
    return kind;
  }

  /** Reads a body to the end of `message`, with the padding, which the next frame overwrites. */
  private void body() {
    if (length == 0) shrink(bodyBytes);
    Platform.putLong(address, Platform.BYTE_ARRAY_OFFSET + 24, ordinal);
    crc.reset();
    crc.update(address, 0, address.length);
    int from = length, stop = length + (bodyBytes + 7 & ~7);
    while (from < stop) {
      grow(from, 0, stop);
      int step = Math.min(Math.min(message.length, stop) - from, STEP_BYTES);
      fill(message, from, step);
      crc.update(message, from, step);
      from += step;
    }
    int stated = Index.int4(header, 16), found = (int) crc.getValue();
    if (stated != found)
      throw corrupt("frame at byte " + frameAt + " with first ordinal " + ordinal
          + ": body CRC: expected " + hex(stated) + ", found " + hex(found));
  }

  /** Takes the next bytes of the segment. Short reads are joined, long ones go past the buffer. */
  private void fill(byte[] into, int place, int count) {
    while (count > 0) {
      boolean here = index.key.equals(buffered) && at >= bufferAt && at < bufferEnd;
      int step = count;
      if (here) {
        step = (int) Math.min(step, bufferEnd - at);
        System.arraycopy(buffer, (int) (at - bufferAt), into, place, step);
      } else if (count >= BUFFER_BYTES) {
        folder.read(index.key, at, into, place, step);
      } else {
        long wanted = Math.min(Math.max(end - at, AHEAD_BYTES), Math.min(BUFFER_BYTES, size - at));
        buffered = null; // until all of it was read
        folder.read(index.key, at, buffer, 0, (int) wanted);
        bufferAt = at;
        bufferEnd = at + wanted;
        buffered = index.key;
        continue;
      }
      at += step;
      place += step;
      count -= step;
    }
  }

  private RuntimeException ended(long expected, long received) {
    return corrupt("frame at byte " + frameAt + ": the input ended: expected " + expected
        + " bytes, received " + received);
  }

  private RuntimeException corrupt(String what) {
    return Failure.of("CorruptDataError", what + ": " + index.place());
  }

  private RuntimeException incompatible(String what) {
    return Failure.of("IncompatibleError", what + ": " + index.place());
  }

  private static String hex(int value) {
    return String.format("0x%08x", new Object[] {Integer.valueOf(value)});
  }
}
