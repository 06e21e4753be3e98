// The index of a sealed stage, as `seal/index.py` lays it out.

/** The extents of a task's subpartitions: by producer, then subpartition, then first ordinal. */
static final class Index {
  private static final int HEADER_BYTES = 24, TABLE_BYTES = 24, CHECKED_BYTES = 20;
  private static final int ENTRY_BYTES = 56, COMPACTED = 1 << 31;

  int producer = -1, subpartition = -1; // of the extent at hand
  String key = null; // of its segment
  long offset = 0, length = 0, ordinal = 0, rows = 0;
  private final Folder folder;
  private final String prefix, name;
  private final long indexBytes, sliceBytes;
  private final int partitions, producers, first, end;
  private final boolean own; // subpartition k has the rows of producer k alone
  private final java.util.zip.CRC32 crc = new java.util.zip.CRC32();
  private byte[][] slices = null;
  private int[] next = null; // place of the next entry in each slice
  private int slice = 0, reading = 0; // of which slice and producer extents are taken

  Index(Folder folder, java.util.Map how, int task) {
    this.folder = folder;
    prefix = (String) how.get("prefix");
    name = (String) how.get("index");
    indexBytes = ((Number) how.get("index_bytes")).longValue();
    sliceBytes = ((Number) how.get("slice_bytes")).longValue();
    partitions = ((Number) how.get("partitions")).intValue();
    producers = ((Number) how.get("producers")).intValue();
    own = ((Boolean) how.get("passthrough")).booleanValue();
    byte[] groups = (byte[]) how.get("groups");
    first = groups.length == 0 ? task : int4(groups, 8 * task);
    end = groups.length == 0 ? task + 1 : int4(groups, 8 * task + 4);
  }

  /** Takes the next extent that has rows; returns false behind the last one. */
  boolean next() {
    if (slices == null) load();
    for (; reading < producers; reading++) {
      for (; slice < slices.length; slice++) {
        byte[] entries = slices[slice];
        while (next[slice] < entries.length && int4(entries, next[slice]) == reading) {
          int at = next[slice];
          next[slice] += ENTRY_BYTES;
          if (int8(entries, at + 32) == 0) continue;
          take(entries, at);
          return true;
        }
      }
      slice = 0;
    }
    return false;
  }

  String place() {
    return "segment='" + key + "' bytes=[" + offset + ", " + (offset + length)
        + ") producer=" + producer + " subpartition=" + subpartition;
  }

  private void take(byte[] entries, int at) {
    producer = reading;
    subpartition = first + slice;
    offset = int8(entries, at + 8);
    length = int8(entries, at + 16);
    ordinal = int8(entries, at + 24);
    rows = int8(entries, at + 32);
    key = key(int4(entries, at + 4), entries, at + 40);
  }

  /** Returns the key of a segment, see `log/layout.py`. */
  private String key(int segment, byte[] entries, int attemptAt) {
    StringBuilder text = new StringBuilder();
    boolean compacted = (segment & COMPACTED) != 0;
    if (!compacted) {
      String number = String.valueOf(producer);
      text.append('p');
      for (int i = number.length(); i < 6; i++) text.append('0');
      text.append(number).append('-');
    }
    hex(text, entries, attemptAt, 16);
    text.append('-').append(segment & ~COMPACTED).append(".seg");
    byte[] spread = new byte[] {(byte) crc(text.toString(), new byte[0], 0, 0)};
    StringBuilder found = new StringBuilder(prefix);
    found.append(compacted ? "compacted/" : "segments/");
    hex(found, spread, 0, 1);
    return found.append('/').append(text.toString()).toString();
  }

  /** Reads and checks the entries of all subpartitions of the task. */
  private void load() {
    int count = end - first;
    if (first < 0 || count <= 0 || end > partitions)
      throw Failure.of("InvalidInputError",
          "no such subpartitions: found=[" + first + ", " + end + ") partitions=" + partitions
              + " stage='" + prefix + "'");
    byte[] table = new byte[count * TABLE_BYTES];
    folder.read(name, HEADER_BYTES + (long) TABLE_BYTES * first, table, 0, table.length);
    byte[][] found = new byte[count][];
    long after = -1;
    for (int i = 0; i < count; i++) {
      int at = i * TABLE_BYTES, k = first + i;
      long start = int8(table, at), size = int8(table, at + 8);
      String seed = name + " " + partitions + " " + producers + " " + k;
      if (crc(seed, table, at, CHECKED_BYTES) != int4(table, at + 20) || size < 0
          || size > sliceBytes || size % ENTRY_BYTES != 0)
        throw Failure.of("CorruptDataError",
            "an index entry is damaged, or that of another index: " + at(k) + " of " + partitions
                + " producers=" + producers);
      if (start < 0 || start > indexBytes - size || i > 0 && start != after)
        throw Failure.of("CorruptDataError",
            "an index slice is out of order or ends beyond the index: " + at(k));
      after = start + size;
    }
    for (int i = 0; i < count; i++) {
      int at = i * TABLE_BYTES;
      byte[] entries = new byte[(int) int8(table, at + 8)];
      folder.read(name, int8(table, at), entries, 0, entries.length);
      if (crc("", entries, 0, entries.length) != int4(table, at + 16))
        throw Failure.of("CorruptDataError", "an index slice is damaged: " + at(first + i));
      check(entries, first + i);
      found[i] = entries;
    }
    reading = own ? first : 0;
    next = new int[count];
    slices = found;
  }

  /** Refuses entries that miss a producer or do not join up. */
  private void check(byte[] entries, int k) {
    int low = own ? k : 0, high = own ? k + 1 : producers, now = low - 1;
    long ordinals = 0;
    for (int at = 0; at < entries.length; at += ENTRY_BYTES) {
      int of = int4(entries, at);
      if (of != now) {
        if (of != now + 1 || of >= high) break;
        now = of;
        ordinals = 0;
      }
      long size = int8(entries, at + 16), start = int8(entries, at + 24);
      long count = int8(entries, at + 32);
      if (start != ordinals || (count == 0) != (size == 0))
        throw Failure.of("CorruptDataError",
            "index entries do not join up: " + at(k) + " producer=" + of + " first_ordinal=" + start
                + " rows=" + count + " length=" + size);
      ordinals += count;
      if (at + ENTRY_BYTES == entries.length && now == high - 1) return;
    }
    if (entries.length == 0 && low == high) return;
    throw Failure.of("CorruptDataError",
        "the index misses producers: " + at(k) + " expected=" + (high - low)
            + " found=" + (now - low + 1));
  }

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
