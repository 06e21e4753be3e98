// The rows of a segment before they are encoded. Part of the encoder's text.

/** Rows in pages of Spark's execution memory, and their order by partition. */
static final class Held extends org.apache.spark.memory.MemoryConsumer {
  private static final int PAGE = 256 << 10; // less than half of G1's smallest region
  private static final int PREFIX = 8;       // partition, size
  private static final long LEAST = 1 << 20; // bytes of pages that a task always has
  private final Encode task;
  private final long most;      // bytes of all pages
  private final int page;       // bytes of a page, a power of two
  private final int shift;      // of the number of references in a page of the order
  private byte[][] pages = new byte[16][], free = new byte[16][];
  private int[] ends = new int[16];
  private long[][] order = new long[16][];
  private int pageCount = 0, freeCount = 0, orderCount = 0;
  private long reserved = 0, missing = 0; // bytes of pages; of them, not granted by Spark
  private long buffers = 0;     // bytes granted for the buffers of frames
  private boolean closed = false;
  private final int[] counts;   // rows of each partition; once sorted, the end of each
  int count = 0;

  Held(Encode task, org.apache.spark.memory.TaskMemoryManager manager, int partitions, long most) {
    super(manager, PAGE, org.apache.spark.memory.MemoryMode.ON_HEAP);
    this.task = task;
    this.most = most;
    this.page = (int) Math.min((long) PAGE, Math.max(1024L, Long.highestOneBit(most / 8)));
    this.shift = Integer.numberOfTrailingZeros(page) - 3;
    this.counts = new int[partitions];
  }

  /** Without a task, in a probe, all memory is granted. */
  public long acquireMemory(long bytes) {
    return taskMemoryManager == null ? bytes : super.acquireMemory(bytes);
  }

  public void freeMemory(long bytes) {
    if (taskMemoryManager != null) super.freeMemory(bytes);
  }

  /** Adds a row; false if there is no room for it. */
  boolean add(UnsafeRow row, int partition) {
    int size = row.getSizeInBytes(), last = pageCount - 1;
    if (count >> shift == orderCount && !orderPage()) return false;
    if (last < 0 || ends[last] + PREFIX + size > pages[last].length) {
      if (!rowPage(PREFIX + size)) return false;
      last = pageCount - 1;
    }
    byte[] bytes = pages[last];
    int at = ends[last];
    Platform.putInt(bytes, Platform.BYTE_ARRAY_OFFSET + at, partition);
    Platform.putInt(bytes, Platform.BYTE_ARRAY_OFFSET + at + 4, size);
    Object base = row.getBaseObject();
    if (base instanceof byte[]) {
      int from = (int) (row.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
      System.arraycopy((byte[]) base, from, bytes, at + PREFIX, size);
    } else {
      long to = Platform.BYTE_ARRAY_OFFSET + at + PREFIX;
      Platform.copyMemory(base, row.getBaseOffset(), bytes, to, size);
    }
    ends[last] = at + PREFIX + size;
    counts[partition]++;
    count++;
    return true;
  }

  /** Whether a row is so long that it is encoded alone, from where it is. */
  boolean isLong(int size) { return size + PREFIX > most / 4; }

  private boolean orderPage() {
    if (!reserve(page)) return false;
    if (orderCount == order.length)
      order = (long[][]) java.util.Arrays.copyOf(order, 2 * orderCount);
    order[orderCount++] = new long[page >> 3];
    return true;
  }

  private boolean rowPage(int size) {
    byte[] bytes;
    if (size <= page && freeCount > 0) {
      bytes = free[--freeCount];
      free[freeCount] = null;
    } else {
      int wanted = Math.max(page, size);
      if (!reserve(wanted)) return false;
      bytes = new byte[wanted];
    }
    if (pageCount == pages.length) {
      pages = (byte[][]) java.util.Arrays.copyOf(pages, 2 * pageCount);
      free = (byte[][]) java.util.Arrays.copyOf(free, 2 * pageCount);
      ends = java.util.Arrays.copyOf(ends, 2 * pageCount);
    }
    pages[pageCount] = bytes;
    ends[pageCount++] = 0;
    return true;
  }

  /** Takes bytes of Spark's memory, all or none. The first ones are needed, granted or not: else
      each row would become a segment. */
  private synchronized boolean reserve(long bytes) {
    if (closed || reserved + bytes > most) return false;
    long granted = acquireMemory(bytes);
    if (granted < bytes) {
      if (reserved + bytes > LEAST) {
        freeMemory(granted);
        return false;
      }
      missing += bytes - granted;
    }
    reserved += bytes;
    return true;
  }

  /** Tells Spark how large the buffers of frames are. They are needed, granted or not. */
  synchronized void account(long bytes) {
    if (closed) return;
    if (bytes > buffers) buffers += acquireMemory(bytes - buffers);
    else {
      freeMemory(buffers - bytes);
      buffers = bytes;
    }
  }

  /** Sorts the rows by partition; rows of a partition keep their order. */
  void sort() {
    int sum = 0;
    for (int k = 0; k < counts.length; k++) {
      int rows = counts[k];
      counts[k] = sum;
      sum += rows;
    }
    int mask = (1 << shift) - 1;
    for (int p = 0; p < pageCount; p++) {
      byte[] bytes = pages[p];
      int end = ends[p];
      for (int at = 0; at < end; ) {
        int k = Platform.getInt(bytes, Platform.BYTE_ARRAY_OFFSET + at);
        int place = counts[k]++;
        order[place >> shift][place & mask] = (long) p << 32 | at + PREFIX;
        at += PREFIX + Platform.getInt(bytes, Platform.BYTE_ARRAY_OFFSET + at + 4);
      }
    }
  }

  /** Place behind the last row of a partition, once sorted. */
  int end(int partition) { return counts[partition]; }

  /** Where the row at a place in the order is: its page, and in the low half where it begins. */
  long reference(int place) { return order[place >> shift][place & (1 << shift) - 1]; }

  byte[] page(long reference) { return pages[(int) (reference >>> 32)]; }

  /** Forgets the rows; keeps pages of the usual size for later ones. */
  void clear() {
    for (int p = 0; p < pageCount; p++) {
      if (pages[p].length == page) free[freeCount++] = pages[p];
      else release(pages[p].length);
      pages[p] = null;
    }
    pageCount = 0;
    count = 0;
    java.util.Arrays.fill(counts, 0);
  }

  private void release(long bytes) {
    long mine = Math.min(bytes, missing);
    missing -= mine;
    freeMemory(bytes - mine);
    reserved -= bytes;
  }

  /** Gives Spark all memory back but that of rows; returns how many bytes. */
  long trim() {
    long before = reserved;
    for (; freeCount > 0; free[freeCount] = null) release(free[--freeCount].length);
    while (orderCount > 0 && orderCount - 1 << shift >= count) {
      order[--orderCount] = null;
      release(page);
    }
    return before - reserved;
  }

  /** Gives Spark all memory back, once. May be called from another thread. */
  synchronized void close() {
    if (closed) return;
    closed = true;
    freeMemory(reserved - missing + buffers);
    reserved = missing = buffers = 0;
    pageCount = freeCount = orderCount = count = 0;
    pages = free = new byte[0][];
    order = new long[0][];
  }

  public long spill(long size, org.apache.spark.memory.MemoryConsumer trigger)
      throws java.io.IOException {
    return trigger == this ? 0L : task.spill();
  }
}
