// The rows of a segment before they are encoded. Part of the encoder's text.

/** Rows in pages of Spark's execution memory, and for each partition a list of references to them.

    A reference says where a row is: the number of its page, where it begins and how long it is,
    both in words of 8 bytes. So the pages need not be read to find rows. Lists consist of chunks;
    the last slot of a chunk is the number of the first slot of the next one. */
static final class Held extends org.apache.spark.memory.MemoryConsumer {
  private static final int PAGE = 256 << 10; // less than half of G1's smallest region
  private static final int SIZE_BITS = 24, PLACE_BITS = 16;
  private static final long LEAST = 1 << 20; // bytes of pages that a task always has
  private final Encode task;
  private final long most; // bytes of all pages
  private final int page; // bytes of a page, a power of two
  private final int shift; // of the number of slots in a page of the lists
  private final int chunk; // slots, a power of two
  private byte[][] pages = new byte[16][], free = new byte[16][];
  private int[] ends = new int[16];
  private long[][] slots = new long[16][];
  private int pageCount = 0, freeCount = 0, slotPages = 0;
  private long reserved = 0, missing = 0; // bytes of pages; of them, not granted by Spark
  private long buffers = 0; // bytes granted for the buffers of frames
  private boolean closed = false;
  private final int[] heads, tails, counts; // of each list: first and next slot, references
  private int nextChunk = 0; // its first slot
  private int cursor = 0; // slot of the row at hand
  int left = 0; // rows of the partition that is read
  int count = 0;

  Held(Encode task, org.apache.spark.memory.TaskMemoryManager manager, int partitions, long most) {
    super(manager, PAGE, org.apache.spark.memory.MemoryMode.ON_HEAP);
    this.task = task;
    this.most = most;
    this.page = (int) Math.min((long) PAGE, Math.max(1024L, Long.highestOneBit(most / 8)));
    this.shift = Integer.numberOfTrailingZeros(page) - 3;
    long share = Long.highestOneBit(Math.max(1L, most / (128L * partitions)));
    this.chunk = (int) Math.max(4L, Math.min(64L, share));
    this.heads = new int[partitions];
    this.tails = new int[partitions];
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
    int size = row.getSizeInBytes(), last = pageCount - 1, slot = tails[partition];
    boolean newChunk = counts[partition] == 0 || (slot & chunk - 1) == chunk - 1;
    if (newChunk && nextChunk >> shift == slotPages && !slotPage()) return false;
    if (last < 0 || ends[last] + size > pages[last].length) {
      if (!rowPage(size)) return false;
      last = pageCount - 1;
    }
    if (newChunk) {
      if (counts[partition] == 0) heads[partition] = nextChunk;
      else put(slot, nextChunk);
      slot = nextChunk;
      nextChunk += chunk;
    }
    byte[] bytes = pages[last];
    int at = ends[last];
    Object base = row.getBaseObject();
    if (base instanceof byte[]) {
      int from = (int) (row.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
      System.arraycopy((byte[]) base, from, bytes, at, size);
    } else
      Platform.copyMemory(base, row.getBaseOffset(), bytes, Platform.BYTE_ARRAY_OFFSET + at, size);
    put(slot, (((long) last << PLACE_BITS | at >> 3) << SIZE_BITS) | size >> 3);
    ends[last] = at + size;
    tails[partition] = slot + 1;
    counts[partition]++;
    count++;
    return true;
  }

  private void put(int slot, long value) { slots[slot >> shift][slot & (1 << shift) - 1] = value; }

  private long get(int slot) { return slots[slot >> shift][slot & (1 << shift) - 1]; }

  /** Whether a row is so long that it is encoded alone, from where it is. */
  boolean isLong(int size) { return size > most / 4 || size >> 3 >= 1 << SIZE_BITS; }

  /** Begins to read a partition: `left` rows, in the order in which they were added. */
  void read(int partition) {
    cursor = heads[partition];
    left = counts[partition];
  }

  /** Where the next row is. */
  long reference() {
    if ((cursor & chunk - 1) == chunk - 1) cursor = (int) get(cursor);
    return get(cursor);
  }

  void next() {
    cursor++;
    left--;
  }

  byte[] page(long reference) { return pages[(int) (reference >>> PLACE_BITS + SIZE_BITS)]; }

  static int place(long reference) {
    return (int) (reference >>> SIZE_BITS & (1 << PLACE_BITS) - 1) << 3;
  }

  static int size(long reference) { return (int) (reference & (1 << SIZE_BITS) - 1) << 3; }

  private boolean slotPage() {
    if (!reserve(page)) return false;
    if (slotPages == slots.length) slots = (long[][]) java.util.Arrays.copyOf(slots, 2 * slotPages);
    slots[slotPages++] = new long[page >> 3];
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

  /** Forgets the rows; keeps pages of the usual size for later ones. */
  void clear() {
    for (int p = 0; p < pageCount; p++) {
      if (pages[p].length == page) free[freeCount++] = pages[p];
      else release(pages[p].length);
      pages[p] = null;
    }
    pageCount = nextChunk = count = 0;
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
    while (slotPages > 0 && slotPages - 1 << shift >= nextChunk) {
      slots[--slotPages] = null;
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
    pageCount = freeCount = slotPages = count = left = 0;
    pages = free = new byte[0][];
    slots = new long[0][];
  }

  public long spill(long size, org.apache.spark.memory.MemoryConsumer trigger)
      throws java.io.IOException {
    return trigger == this ? 0L : task.spill();
  }
}
