// A block of extents, as `log/extent_table.py` packs it.

/** Columns of numbers, which are read where they lie. All checks of `unpack_block` are made. */
static final class Extents {
  static final int GAP = 0, COUNT = 1, SEGMENT = 2, OFFSET = 3, LENGTH = 4, ROWS = 5;
  private static final int HEAD_BYTES = 8, COLUMNS = 6, MOST_NUMBER_BYTES = 6;

  final int groups, extents;
  private final byte[] bytes;
  private final int[] begins = new int[COLUMNS], widths = new int[COLUMNS];
  private final long[] least = new long[COLUMNS];

  /** Takes a block whose groups are below `mostGroups`; `place` names it in errors. */
  Extents(byte[] bytes, long mostGroups, long mostExtents, String place) {
    this.bytes = bytes;
    if (bytes.length < HEAD_BYTES) throw damaged(place, bytes.length + " bytes");
    long stated = Index.int4(bytes, 0) & 0xffffffffL, all = Index.int4(bytes, 4) & 0xffffffffL;
    if (stated > mostGroups || all > mostExtents)
      throw damaged(place, stated + " of " + mostGroups + " producers, " + all + " extents");
    groups = (int) stated;
    extents = (int) all;
    int at = HEAD_BYTES;
    for (int column = 0; column < COLUMNS; column++) {
      int head = at < bytes.length ? bytes[at] & 255 : 255, small = head & 15, width = head >> 4;
      long end = at + 1L + small + (long) width * (column < SEGMENT ? groups : extents);
      if (small > MOST_NUMBER_BYTES || width > MOST_NUMBER_BYTES || end > bytes.length)
        throw damaged(place, "a column at byte " + at + " of " + bytes.length);
      least[column] = number(at + 1, small);
      begins[column] = at + 1 + small;
      widths[column] = width;
      at = (int) end;
    }
    if (at != bytes.length) throw damaged(place, bytes.length - at + " bytes too many");
    long last = -1, counted = 0;
    for (int group = 0; group < groups; group++) {
      long gap = get(GAP, group), count = get(COUNT, group);
      last += gap + 1;
      counted += count;
      if (gap >= mostGroups || last >= mostGroups || count > extents)
        throw damaged(place, "producers that are not there, or more extents than there are");
    }
    if (counted != extents) throw damaged(place, counted + " extents");
    for (int i = 0; i < extents; i++)
      if (get(SEGMENT, i) >>> 32 != 0 || get(LENGTH, i) == 0 || get(ROWS, i) == 0)
        throw damaged(place, "an extent without rows or bytes, or of no segment");
  }

  /** Returns number `i` of a column. */
  long get(int column, int i) {
    return least[column] + number(begins[column] + i * widths[column], widths[column]);
  }

  private long number(int at, int width) {
    long found = 0;
    for (int i = at + width - 1; i >= at; i--) found = found << 8 | bytes[i] & 255;
    return found;
  }

  private static RuntimeException damaged(String place, String found) {
    return Failure.of(
        "CorruptDataError", "a table of extents is damaged: " + place + " found=" + found);
  }
}
