// Growing bytes, and messages cut into frames and pages. Part of the encoder's text.

/** Bytes that grow and are used again. */
static final class Bytes {
  private static final int KEPT = 32 << 20; // a longer array, of a very long row, is given up
  private static final long MOST = 2147483000L;
  byte[] data;
  int size;

  Bytes(int capacity) { data = new byte[capacity]; }

  void need(long more) {
    long wanted = size + more;
    if (wanted <= data.length) return;
    if (wanted > MOST) throw new IllegalStateException("a column of one frame is over 2 GiB");
    long grown = data.length < (1 << 20) ? 2L * data.length : data.length + (data.length >> 2);
    data = java.util.Arrays.copyOf(data, (int) Math.min(MOST, Math.max(wanted + 64, grown)));
  }

  void clear() {
    size = 0;
    if (data.length > KEPT) data = new byte[64];
  }

  void put4(int value) {
    need(4);
    Platform.putInt(data, Platform.BYTE_ARRAY_OFFSET + size, value);
    size += 4;
  }

  void put8(long value) {
    need(8);
    Platform.putLong(data, Platform.BYTE_ARRAY_OFFSET + size, value);
    size += 8;
  }

  void put(byte[] from, int at, int length) {
    need(length);
    System.arraycopy(from, at, data, size, length);
    size += length;
  }

  /** Adds zeros. */
  void zeros(int count) {
    need(count);
    java.util.Arrays.fill(data, size, size + count, (byte) 0);
    size += count;
  }

  /** Adds zeros up to a multiple of 8 bytes. */
  void align() { zeros(-size & 7); }
}

/** Pages of finished bytes, in order. The consumer takes them one by one. */
static final class Pages {
  static final int HEAD = 8; // the room before the bytes of a page
  private static final int PAGE = 256 << 10; // less than half of G1's smallest region
  private final java.util.ArrayDeque ready = new java.util.ArrayDeque();
  private byte[] page = new byte[PAGE];
  private int size = HEAD;

  void put(byte[] from, int at, int length) {
    while (length > 0) {
      int now = Math.min(length, PAGE - size);
      System.arraycopy(from, at, page, size, now);
      at += now;
      length -= now;
      size += now;
      if (size == PAGE) {
        ready.add(page);
        page = new byte[PAGE];
        size = HEAD;
      }
    }
  }

  void finish() {
    if (size > HEAD) ready.add(java.util.Arrays.copyOf(page, size));
    size = HEAD;
  }

  boolean any() { return !ready.isEmpty(); }

  byte[] take() { return (byte[]) ready.remove(); }
}

/** One Arrow message on its way into frames: parts of bytes, each a multiple of 8 bytes long. */
static final class Message {
  private static final int MAGIC = 0x46534489, HEADER = 24, CONTINUES = 1;
  private final byte[] address = new byte[32], header = new byte[HEADER];
  private final java.util.zip.CRC32 crc = new java.util.zip.CRC32();
  private final int most; // bytes of a frame's body
  private byte[][] parts = new byte[8][];
  private int[] sizes = new int[8];
  private int count, rows, part, from; // the next byte is parts[part][from]
  private long left, inFrame; // bytes of the message; of them in the frame begun

  Message(String stage, int producer, int maxFrameBytes) {
    most = maxFrameBytes & ~7;
    for (int i = 0; i < 16; i++)
      address[i] = (byte) Integer.parseInt(stage.substring(2 * i, 2 * i + 2), 16);
    Platform.putInt(address, Platform.BYTE_ARRAY_OFFSET + 16, producer);
  }

  void clear() {
    java.util.Arrays.fill(parts, null);
    count = part = from = 0;
    left = inFrame = 0;
  }

  /** Adds a part. The array must not change before the message is written. */
  void add(byte[] data, int size) {
    if (count == parts.length) {
      parts = (byte[][]) java.util.Arrays.copyOf(parts, 2 * count);
      sizes = java.util.Arrays.copyOf(sizes, 2 * count);
    }
    parts[count] = data;
    sizes[count++] = size;
    left += size;
  }

  /** Sets the first part, of which only the place was added. */
  void first(byte[] data, int size) {
    parts[0] = data;
    sizes[0] = size;
    left += size;
  }

  /** Names the rows that the message holds; returns the bytes of its frames. */
  long address(int partition, long ordinal, int rowCount) {
    rows = rowCount;
    Platform.putInt(address, Platform.BYTE_ARRAY_OFFSET + 20, partition);
    Platform.putLong(address, Platform.BYTE_ARRAY_OFFSET + 24, ordinal);
    return left + HEADER * ((left + most - 1) / most);
  }

  boolean done() { return left == 0; }

  /** Writes frames; without `all`, only until a page is ready. */
  void write(Pages pages, boolean all) {
    while (left > 0 && (all || !pages.any())) {
      if (inFrame == 0) begin(pages);
      int now = (int) Math.min(inFrame, Math.min(sizes[part] - from, 1 << 20));
      pages.put(parts[part], from, now);
      advance(now);
      inFrame -= now;
      left -= now;
    }
  }

  private void advance(int bytes) {
    from += bytes;
    while (part < count && from == sizes[part]) {
      parts[part++] = null;
      from = 0;
    }
  }

  private void begin(Pages pages) {
    inFrame = Math.min(left, most);
    boolean last = inFrame == left;
    crc.reset();
    crc.update(address, 0, 32);
    long rest = inFrame;
    for (int p = part, at = from; rest > 0; p++, at = 0) {
      int now = (int) Math.min(rest, sizes[p] - at);
      crc.update(parts[p], at, now);
      rest -= now;
    }
    long to = Platform.BYTE_ARRAY_OFFSET;
    Platform.putInt(header, to, MAGIC);
    Platform.putInt(header, to + 4, last ? 1 : 1 | CONTINUES << 8);
    Platform.putInt(header, to + 8, last ? rows : 0);
    Platform.putInt(header, to + 12, (int) inFrame);
    Platform.putInt(header, to + 16, (int) crc.getValue());
    crc.reset();
    crc.update(header, 0, 20);
    Platform.putInt(header, to + 20, (int) crc.getValue());
    pages.put(header, 0, HEADER);
  }
}
