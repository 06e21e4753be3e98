// The index of a sealed stage, as `seal/index.py` lays it out.

/** The extents of a task's subpartitions: by producer, then subpartition, then first ordinal. */
static final class Index {
  private static final int HEADER_BYTES = 40, TABLE_BYTES = 36, CHECKED_BYTES = 32;

  int producer = -1, subpartition = -1; // of the extent at hand
  String key = null; // of its segment
  long offset = 0, length = 0, ordinal = 0, rows = 0;
  private final Folder folder;
  private final String prefix, name;
  private final long indexBytes, sliceBytes, wholeBytes, mostExtents;
  private final int partitions, producers, first, end;
  private final int begin, stop; // extents that the task reads, counted over its subpartitions
  private int position = 0;
  private final boolean own; // subpartition k has the rows of producer k alone
  private final byte[] attempts, compaction; // ids: of each producer's, of the index's own
  private final java.util.zip.CRC32 crc = new java.util.zip.CRC32();
  private Extents[] slices = null;
  private int[] next = null; // the next extent of each slice
  private int slice = -1, reading = 0; // of which slice and producer extents are taken
  private long left = 0; // extents of these

  Index(Folder folder, java.util.Map how, int task) {
    this.folder = folder;
    prefix = (String) how.get("prefix");
    name = (String) how.get("index");
    indexBytes = ((Number) how.get("index_bytes")).longValue();
    sliceBytes = ((Number) how.get("slice_bytes")).longValue();
    wholeBytes = ((Number) how.get("whole_bytes")).longValue();
    mostExtents = ((Number) how.get("most_extents")).longValue();
    partitions = ((Number) how.get("partitions")).intValue();
    producers = ((Number) how.get("producers")).intValue();
    own = ((Boolean) how.get("passthrough")).booleanValue();
    attempts = (byte[]) how.get("attempts");
    compaction = (byte[]) how.get("compaction");
    byte[] groups = (byte[]) how.get("groups");
    boolean all = groups.length == 0;
    first = all ? task : int4(groups, 16 * task);
    end = all ? task + 1 : int4(groups, 16 * task + 4);
    begin = all ? 0 : int4(groups, 16 * task + 8);
    stop = all ? Integer.MAX_VALUE : int4(groups, 16 * task + 12);
  }

  /** Takes the next extent that the task reads; returns false behind the last one. */
  boolean next() {
    if (slices == null) load();
    while (position < stop && advance())
      if (position++ >= begin) return true;
    return false;
  }

  /** Takes the next extent that has rows; returns false behind the last one. */
  private boolean advance() {
    while (left == 0) {
      if (++slice == slices.length) {
        slice = 0;
        reading++;
      }
      if (reading >= producers) return false;
      if (own && reading != first + slice) continue;
      left = slices[slice].get(Extents.COUNT, own ? 0 : reading);
      ordinal = rows = 0;
    }
    left--;
    ordinal += rows;
    take(slices[slice], next[slice]++);
    return true;
  }

  String place() {
    return "segment='" + key + "' bytes=[" + offset + ", " + (offset + length)
        + ") producer=" + producer + " subpartition=" + subpartition;
  }

  private void take(Extents extents, int i) {
    producer = reading;
    subpartition = first + slice;
    offset = extents.get(Extents.OFFSET, i);
    length = extents.get(Extents.LENGTH, i);
    rows = extents.get(Extents.ROWS, i);
    key = key(extents.get(Extents.SEGMENT, i));
  }

  /** Returns the key of a segment, see `log/layout.py`; odd ones are the compaction's. */
  private String key(long segment) {
    StringBuilder text = new StringBuilder();
    boolean compacted = (segment & 1) != 0;
    if (!compacted) {
      String number = String.valueOf(producer);
      text.append('p');
      for (int i = number.length(); i < 6; i++) text.append('0');
      text.append(number).append('-');
    }
    hex(text, compacted ? compaction : attempts, compacted ? 0 : 16 * producer, 16);
    text.append('-').append(segment >>> 1).append(".seg");
    byte[] spread = new byte[] {(byte) crc(text.toString(), new byte[0], 0, 0)};
    StringBuilder found = new StringBuilder(prefix);
    found.append(compacted ? "compacted/" : "segments/");
    hex(found, spread, 0, 1);
    return found.append('/').append(text.toString()).toString();
  }

  /** Reads and checks the slices of all subpartitions of the task. */
  private void load() {
    int count = end - first;
    if (first < 0 || count <= 0 || end > partitions)
      throw Failure.of("InvalidInputError",
          "no such subpartitions: found=[" + first + ", " + end + ") partitions=" + partitions
              + " stage='" + prefix + "'");
    byte[] table = new byte[count * TABLE_BYTES];
    folder.read(name, HEADER_BYTES + (long) TABLE_BYTES * first, table, 0, table.length);
    long before = 0, after = 0; // part and end of the slice before
    for (int i = 0; i < count; i++) {
      int at = i * TABLE_BYTES, k = first + i;
      long part = part(table, at), start = int8(table, at + 4), size = int8(table, at + 12);
      String seed = name + " " + partitions + " " + producers + " " + k;
      if (crc(seed, table, at, CHECKED_BYTES) != int4(table, at + CHECKED_BYTES) || size < 0
          || size > sliceBytes || start < 0 || start > wholeBytes - size
          || int8(table, at + 20) < 0)
        throw Failure.of("CorruptDataError",
            "an index entry is damaged, or that of another index: " + at(k) + " of " + partitions
                + " producers=" + producers);
      boolean follows =
          part == before ? start == after : before > 0 && part == before + 1 && start == 0;
      if (part == 0 && start > indexBytes - size || i > 0 && !follows)
        throw Failure.of("CorruptDataError",
            "an index slice is out of order or ends beyond the index: " + at(k));
      before = part;
      after = start + size;
    }
    Extents[] found = new Extents[count];
    for (int i = 0; i < count; i++) {
      int at = i * TABLE_BYTES;
      long part = part(table, at);
      byte[] bytes = new byte[(int) int8(table, at + 12)];
      String of = part == 0 ? name : name + "-" + part;
      folder.read(of, int8(table, at + 4), bytes, 0, bytes.length);
      if (crc("", bytes, 0, bytes.length) != int4(table, at + 28))
        throw Failure.of("CorruptDataError", "an index slice is damaged: " + at(first + i));
      found[i] = new Extents(bytes, producers, mostExtents, at(first + i));
      check(found[i], first + i);
    }
    reading = own ? first : 0;
    next = new int[count];
    slices = found;
  }

  /** Refuses a slice that misses a producer. */
  private void check(Extents extents, int k) {
    int expected = own ? 1 : producers;
    boolean all = extents.groups == expected;
    for (int i = 0; all && i < expected; i++) all = extents.get(Extents.GAP, i) == (own ? k : 0);
    if (!all)
      throw Failure.of("CorruptDataError",
          "the index misses producers: " + at(k) + " expected=" + expected
              + " entries=" + extents.groups);
  }

  private static long part(byte[] table, int at) { return int4(table, at) & 0xffffffffL; }

  private String at(int k) { return "key='" + name + "' subpartition=" + k; }

  private int crc(String seed, byte[] bytes, int at, int count) {
    crc.reset();
    byte[] before = seed.getBytes(java.nio.charset.StandardCharsets.UTF_8);
    crc.update(before, 0, before.length);
    crc.update(bytes, at, count);
    return (int) crc.getValue();
  }

  static int int4(byte[] bytes, int at) {
    return Platform.getInt(bytes, Platform.BYTE_ARRAY_OFFSET + at);
  }

  static long int8(byte[] bytes, int at) {
    return Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + at);
  }

  private static void hex(StringBuilder text, byte[] bytes, int at, int count) {
    for (int i = at; i < at + count; i++) {
      text.append(Character.forDigit(bytes[i] >> 4 & 15, 16));
      text.append(Character.forDigit(bytes[i] & 15, 16));
    }
  }
}
