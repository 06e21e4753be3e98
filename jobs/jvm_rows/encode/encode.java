// Body of a class that Spark compiles on its executors, see README.md: rows in, pages out.
public Object generate(Object[] references) { return new Encode(references); }

/** The state of one task. Yields rows of one piece: all data of a segment, in order, then its
    extents; at the end the totals. `written.py` has the layout. */
static final class Encode extends org.apache.spark.sql.execution.BufferedRowIterator {
  private static final int DATA = 0, EXTENTS = 1, TOTALS = 2; // kinds of pieces
  private static final int GATHERED = 128 << 10; // bytes of the rows that are encoded at a time
  private static final int LARGE = 16 << 10; // a row of this size is encoded where it is
  private static final int UNCOMPRESSED = 24 << 20; // a longer row: readers limit what inflates

  private final String stage;
  // where a row's partition comes from: it is computed, rows take turns, or it is the producer
  private final org.apache.spark.sql.catalyst.expressions.Expression place;
  private org.apache.spark.sql.catalyst.expressions.UnsafeProjection places;
  private final boolean turns;
  private final int partitions, maxFrameBytes;
  private final long memoryBytes, wanted;
  private final org.apache.spark.sql.types.StructType schema; // of the rows
  private org.apache.spark.sql.catalyst.expressions.UnsafeProjection projection;
  private final Column[] columns;
  private final Body body;
  private final int nullWords;
  private final long rowBytes, frameBits; // of a row's fixed part; of its columns in a frame

  private scala.collection.Iterator input;
  private int producer;
  private TaskContext context;
  private volatile Thread owner; // that asks for pages
  private Held held;
  private Message message;
  private final Pages pages = new Pages();
  private UnsafeRow waiting; // a row for which there was no room
  private int turn; // partition of the next row, if rows take turns
  private boolean flushing = false, sealed = false, spilling = false;
  private boolean ended = false, finished = false;

  private final long[] ordinals; // of each partition's next row
  private int segment = 0, partition = 0; // of the next frame while flushing
  private long first = 0; // ordinal of the partition's first row in the segment
  private long written = 0, begin = 0; // bytes of the segment; where the partition begins
  private long memory = 0; // bytes of the segment's columns
  private final Bytes extents = new Bytes(1 << 12);

  private final byte[] gathered = new byte[GATHERED];
  private final long[] at = new long[Column.STEP];
  private final long[] anyNull;
  private Object source; // what `at` points into
  private long estimate; // bytes of the frame
  private boolean full; // the frame is

  Encode(Object[] references) {
    partitions = ((Integer) references[1]).intValue();
    turns = references[2].equals("turns");
    stage = (String) references[3];
    memoryBytes = ((Number) references[4]).longValue();
    wanted = ((Number) references[5]).longValue();
    maxFrameBytes = ((Integer) references[6]).intValue();
    body = new Body((String) references[7]);
    schema = (org.apache.spark.sql.types.StructType) references[8];
    place = (org.apache.spark.sql.catalyst.expressions.Expression) references[9];
    columns = Column.parse((String) references[0]);
    int fields = schema.size();
    nullWords = (fields + 63) >> 6;
    rowBytes = 8L * (nullWords + fields);
    long bits = columns.length == 0 ? 64 : 0; // a row without columns counts as 8 bytes
    for (int c = 0; c < columns.length; c++) bits += columns[c].bits();
    frameBits = bits;
    anyNull = new long[nullWords];
    ordinals = new long[partitions];
  }

  public void init(int number, scala.collection.Iterator[] inputs) {
    partitionIndex = number;
    producer = number;
    input = inputs[0];
    turn = number % partitions;
    if (place != null) {
      places = org.apache.spark.sql.catalyst.expressions.UnsafeProjection.create(place);
      places.initialize(number);
    }
    context = TaskContext.get();
    message = new Message(stage, producer, maxFrameBytes);
    org.apache.spark.memory.TaskMemoryManager manager =
        context == null ? null : context.taskMemoryManager();
    held = new Held(this, manager, partitions, memoryBytes);
    if (context == null) return; // the driver tries the encoder out
    final Held pagesOfRows = held;
    context.addTaskCompletionListener(new org.apache.spark.util.TaskCompletionListener() {
      public void onTaskCompletion(TaskContext ended) { pagesOfRows.close(); }
    });
  }

  protected void processNext() throws java.io.IOException {
    owner = Thread.currentThread();
    while (!finished) {
      if (pages.any()) {
        hand(pages.take(), DATA);
        return;
      }
      if (!message.done()) message.write(pages, false);
      else if (flushing) flush();
      else if (sealed) {
        sealed = false;
        hand(java.util.Arrays.copyOf(extents.data, extents.size), EXTENTS);
        segment++;
        return;
      } else if (waiting != null) {
        UnsafeRow row = waiting;
        waiting = null;
        take(row);
      } else if (!ended && input.hasNext()) take(unsafe((InternalRow) input.next()));
      else if (!ended) {
        ended = true;
        if (held.count > 0) startFlush();
      } else {
        finished = true;
        held.close();
        totals();
      }
    }
  }

  private void hand(byte[] piece, int kind) {
    Platform.putInt(piece, Platform.BYTE_ARRAY_OFFSET, segment);
    Platform.putInt(piece, Platform.BYTE_ARRAY_OFFSET + 4, kind);
    append(new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(new Object[] {piece}));
  }

  private void totals() {
    extents.clear();
    extents.put8(0); // for the head
    long sum = 0;
    for (int k = 0; k < partitions; k++) sum += ordinals[k];
    extents.put8(sum);
    for (int k = 0; k < partitions; k++) extents.put8(ordinals[k]);
    hand(java.util.Arrays.copyOf(extents.data, extents.size), TOTALS);
  }

  private UnsafeRow unsafe(InternalRow row) {
    if (row instanceof UnsafeRow) return (UnsafeRow) row;
    if (projection == null)
      projection = org.apache.spark.sql.catalyst.expressions.UnsafeProjection.create(schema);
    return projection.apply(row);
  }

  /** Keeps a row; if there is no room, the rows before it become a segment first. */
  private void take(UnsafeRow row) {
    if (sealed) { // memory was asked for while this row was made; that segment goes first
      waiting = row;
      return;
    }
    int k = turn;
    if (places != null) k = ((UnsafeRow) places.apply(row)).getInt(0);
    else if (!turns) k = producer;
    if (k < 0 || k >= partitions)
      throw new IllegalStateException("partition " + k + " of " + partitions);
    if (held.isLong(row.getSizeInBytes()) || !held.add(row, k)) {
      if (held.count > 0) {
        waiting = row;
        startFlush();
        return;
      }
      alone(row, k);
    }
    if (++turn == partitions) turn = 0;
  }

  private void startSegment() {
    written = begin = memory = 0;
    extents.clear();
    extents.put8(0); // for the head
    extents.put8(0); // for `memory`
    flushing = true;
  }

  private void startFlush() {
    startSegment();
    partition = 0;
    first = ordinals[0];
    held.read(0);
  }

  /** Makes a segment of one row, which is not copied before. */
  private void alone(UnsafeRow row, int k) {
    startSegment();
    first = ordinals[k];
    startFrame();
    source = row.getBaseObject();
    at[0] = row.getBaseOffset();
    estimate = frameBits / 8 + row.getSizeInBytes();
    addGathered(1);
    endFrame(k, 1);
    endPartition(k);
    partition = partitions;
  }

  /** Encodes the next frame, or ends the partition or the segment. */
  private void flush() {
    if (context != null) context.killTaskIfInterrupted();
    if (partition == partitions) {
      pages.finish();
      held.clear();
      Platform.putLong(extents.data, Platform.BYTE_ARRAY_OFFSET + Pages.HEAD, memory);
      flushing = false;
      sealed = true;
    } else if (held.left > 0) {
      int before = held.left;
      startFrame();
      while (!full && held.left > 0) addGathered(gather(held.left == before));
      endFrame(partition, before - held.left);
    } else {
      endPartition(partition);
      if (++partition == partitions) return;
      first = ordinals[partition];
      held.read(partition);
    }
  }

  private void endPartition(int k) {
    if (written == begin) return;
    extents.put4(k);
    extents.put4(segment);
    extents.put8(begin);
    extents.put8(written - begin);
    extents.put8(first);
    extents.put8(ordinals[k] - first);
    begin = written;
  }

  private void startFrame() {
    for (int c = 0; c < columns.length; c++) columns[c].clear();
    estimate = 0;
    full = false;
  }

  private void endFrame(int k, int rows) {
    memory += body.make(columns, rows, estimate > UNCOMPRESSED, message);
    written += message.address(k, ordinals[k], rows);
    ordinals[k] += rows;
    if (spilling) return;
    long buffers = body.capacity();
    for (int c = 0; c < columns.length; c++) buffers += columns[c].capacity();
    held.account(buffers);
  }

  /** Copies the next rows of the partition together, as many as fit into the frame and into the
      processor's cache; returns how many. */
  private int gather(boolean isFirst) {
    int count = 0, used = 0;
    source = gathered;
    while (count < Column.STEP && held.left > 0) {
      long reference = held.reference();
      byte[] page = held.page(reference);
      int start = Held.place(reference), size = Held.size(reference);
      long more = frameBits / 8 + size - rowBytes;
      if (!(isFirst && count == 0) && estimate + more > wanted) {
        full = true;
        break;
      }
      if (size <= LARGE) {
        if (used + size > GATHERED) break;
        System.arraycopy(page, start, gathered, used, size);
        at[count++] = Platform.BYTE_ARRAY_OFFSET + used;
        used += size;
      } else if (count == 0) {
        source = page;
        at[count++] = Platform.BYTE_ARRAY_OFFSET + start;
      } else break;
      estimate += more;
      held.next();
      if (source == page) break;
    }
    return count;
  }

  private void addGathered(int count) {
    for (int w = 0; w < nullWords; w++) {
      long any = 0;
      for (int i = 0; i < count; i++) any |= Platform.getLong(source, at[i] + 8 * w);
      anyNull[w] = any;
    }
    for (int c = 0; c < columns.length; c++) {
      long bit = 1L << (c & 63);
      boolean any = (anyNull[c >> 6] & bit) != 0;
      columns[c].addRows(source, at, count, 8 * (nullWords + c), 8 * (c >> 6), bit, any);
    }
  }

  /** Another consumer of the task needs memory: all rows become frames, which wait in pages. */
  long spill() {
    if (Thread.currentThread() != owner || finished) return 0; // only between two steps of ours
    if (flushing || sealed) return held.trim();
    if (held.count > 0) {
      startFlush();
      spilling = true;
      while (flushing) {
        flush();
        message.write(pages, true);
      }
      spilling = false;
    }
    return held.trim();
  }
}
