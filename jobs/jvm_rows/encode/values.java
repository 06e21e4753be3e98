// The columns of one frame while rows are added to it. Part of the encoder's text.

/** One column, or the child of one. */
static abstract class Column {
  static final int STEP = 512; // most values that one call adds
  int rows = 0, nulls = 0;
  private final Bytes valid = new Bytes(64); // kept only from the first null on

  static Column[] parse(String kinds) {
    java.util.ArrayList all = new java.util.ArrayList();
    int[] at = new int[1];
    while (at[0] < kinds.length()) all.add(one(kinds, at));
    return (Column[]) all.toArray(new Column[0]);
  }

  private static Column one(String kinds, int[] at) {
    char kind = kinds.charAt(at[0]++);
    if (kind == 'b') return new Bits();
    if (kind == '1' || kind == '2' || kind == '4' || kind == '8') return new Fixed(kind - '0');
    if (kind == 's') return new Texts();
    if (kind == 'd' || kind == 'D') return new Decimals(kind == 'd');
    if (kind == 'n') return new Nulls();
    if (kind == 'a') return new Lists(one(kinds, at), null);
    if (kind == 'm') {
      Column key = one(kinds, at);
      return new Lists(new Struct(new Column[] {key, one(kinds, at)}), key);
    }
    if (kind != '(') throw new IllegalArgumentException("unknown kind " + kind);
    java.util.ArrayList fields = new java.util.ArrayList();
    while (kinds.charAt(at[0]) != ')') fields.add(one(kinds, at));
    at[0]++;
    return new Struct((Column[]) fields.toArray(new Column[0]));
  }

  void clear() {
    rows = nulls = 0;
    valid.clear();
  }

  long capacity() { return valid.data.length; }

  /** Bytes of an element in Spark's arrays. */
  int width() { return 8; }

  /** Bits that a value takes in the frame beside what a row keeps in its variable part. */
  abstract int bits();

  /** Adds values. The slot of value i is at slots[i], negative for a null; a slot's offsets count
      from bases[i]. */
  abstract void add(Object memory, long[] slots, long[] bases, int count);

  /** Adds the values that `count` rows have at `slot`; their null bits are in `word`. */
  void addRows(Object memory, long[] at, int count, int slot, int word, long bit, boolean anyNull) {
    if (slots == null) slots = new long[STEP];
    for (int i = 0; i < count; i++)
      slots[i] = anyNull && (Platform.getLong(memory, at[i] + word) & bit) != 0 ? -1 : at[i] + slot;
    add(memory, slots, at, count);
  }

  /** Adds the elements of one UnsafeArrayData. */
  void addElements(Object memory, long array, int count) {
    if (slots == null) slots = new long[STEP];
    if (bases == null) bases = new long[STEP];
    java.util.Arrays.fill(bases, 0, Math.min(count, STEP), array);
    long nullBits = array + 8, first = nullBits + 8L * ((count + 63L) >> 6);
    int width = width();
    for (int done = 0; done < count; done += STEP) {
      int now = Math.min(STEP, count - done);
      for (int i = 0; i < now; i++) {
        int e = done + i;
        long word = Platform.getLong(memory, nullBits + 8L * (e >> 6));
        slots[i] = (word >>> (e & 63) & 1L) != 0 ? -1 : first + (long) width * e;
      }
      add(memory, slots, bases, now);
    }
  }

  private long[] slots, bases;

  abstract void store(Body body);

  /** Adds the node and the validity buffer. */
  final void head(Body body) {
    body.node(rows, nulls);
    if (nulls == 0) body.empty();
    else body.buffer(valid);
  }

  /** Counts values that are not null. */
  final void present(int count) {
    if (nulls > 0)
      for (int i = 0; i < count; i++) bit(valid, rows + i, true);
    rows += count;
  }

  final void validity(long[] slots, int count) {
    for (int i = 0; i < count; i++) mark(slots[i] >= 0);
  }

  final void validity(Object memory, long[] at, int count, int word, long bit, boolean anyNull) {
    if (!anyNull) present(count);
    else
      for (int i = 0; i < count; i++) mark((Platform.getLong(memory, at[i] + word) & bit) == 0);
  }

  private void mark(boolean isValid) {
    if (!isValid && nulls++ == 0) {
      valid.size = 0;
      for (int i = 0; i < rows; i++) bit(valid, i, true);
    }
    if (nulls > 0) bit(valid, rows, isValid);
    rows++;
  }

  /** Appends bit number `at`. */
  static void bit(Bytes bits, int at, boolean set) {
    if ((at & 7) == 0) {
      bits.need(1);
      bits.data[bits.size++] = 0;
    }
    if (set) bits.data[at >> 3] |= (byte) (1 << (at & 7));
  }
}

/** Values of type null: nothing is stored of them. */
static final class Nulls extends Column {
  int width() { return 1; }
  int bits() { return 64; } // what readers count for it

  void add(Object memory, long[] slots, long[] bases, int count) {
    rows += count;
    nulls += count;
  }

  void store(Body body) { body.node(rows, rows); }
}

/** Booleans. */
static final class Bits extends Column {
  private final Bytes data = new Bytes(64);

  int width() { return 1; }
  int bits() { return 2; }

  void clear() {
    super.clear();
    data.clear();
  }

  long capacity() { return super.capacity() + data.data.length; }

  void add(Object memory, long[] slots, long[] bases, int count) {
    for (int i = 0; i < count; i++)
      bit(data, rows + i, slots[i] >= 0 && Platform.getByte(memory, slots[i]) != 0);
    validity(slots, count);
  }

  void store(Body body) {
    head(body);
    body.buffer(data);
  }
}

/** Values of 1, 2, 4 or 8 bytes, the same in rows and frames. */
static final class Fixed extends Column {
  private final int width;
  private final Bytes data = new Bytes(64);

  Fixed(int width) { this.width = width; }

  int width() { return width; }
  int bits() { return 8 * width + 1; }

  void clear() {
    super.clear();
    data.clear();
  }

  long capacity() { return super.capacity() + data.data.length; }

  void addRows(Object memory, long[] at, int count, int slot, int word, long bit, boolean anyNull) {
    data.need((long) width * count);
    if (width == 8) longs(memory, at, count, slot);
    else if (width == 4) ints(memory, at, count, slot);
    else {
      super.addRows(memory, at, count, slot, word, bit, anyNull);
      return;
    }
    data.size += width * count;
    validity(memory, at, count, word, bit, anyNull);
  }

  private void longs(Object memory, long[] at, int count, int slot) {
    byte[] data = this.data.data;
    long to = Platform.BYTE_ARRAY_OFFSET + this.data.size;
    for (int i = 0; i < count; i++, to += 8)
      Platform.putLong(data, to, Platform.getLong(memory, at[i] + slot));
  }

  private void ints(Object memory, long[] at, int count, int slot) {
    byte[] data = this.data.data;
    long to = Platform.BYTE_ARRAY_OFFSET + this.data.size;
    for (int i = 0; i < count; i++, to += 4)
      Platform.putInt(data, to, Platform.getInt(memory, at[i] + slot));
  }

  void add(Object memory, long[] slots, long[] bases, int count) {
    data.need((long) width * count);
    byte[] bytes = data.data;
    long to = Platform.BYTE_ARRAY_OFFSET + data.size;
    for (int i = 0; i < count; i++, to += width) {
      long slot = slots[i];
      if (width == 8) Platform.putLong(bytes, to, slot < 0 ? 0L : Platform.getLong(memory, slot));
      else if (width == 4) Platform.putInt(bytes, to, slot < 0 ? 0 : Platform.getInt(memory, slot));
      else if (width == 2)
        Platform.putShort(bytes, to, slot < 0 ? (short) 0 : Platform.getShort(memory, slot));
      else Platform.putByte(bytes, to, slot < 0 ? (byte) 0 : Platform.getByte(memory, slot));
    }
    data.size += width * count;
    validity(slots, count);
  }

  /** An array without nulls is copied whole. */
  void addElements(Object memory, long array, int count) {
    long first = array + 8 + 8L * ((count + 63L) >> 6), anyNull = 0;
    for (long at = array + 8; at < first; at += 8) anyNull |= Platform.getLong(memory, at);
    if (anyNull != 0) {
      super.addElements(memory, array, count);
      return;
    }
    long bytes = (long) width * count;
    data.need(bytes);
    Platform.copyMemory(memory, first, data.data, Platform.BYTE_ARRAY_OFFSET + data.size, bytes);
    data.size += (int) bytes;
    present(count);
  }

  void store(Body body) {
    head(body);
    body.buffer(data);
  }
}

/** Strings and binaries. */
static final class Texts extends Column {
  private static final int SHORT = 64;
  private final Bytes offsets = new Bytes(64), data = new Bytes(64);

  int bits() { return 17; } // an offset is four bytes, and rows pad to 8, which is four on average

  void clear() {
    super.clear();
    offsets.clear();
    data.clear();
  }

  long capacity() { return super.capacity() + offsets.data.length + data.data.length; }

  void addRows(Object memory, long[] at, int count, int slot, int word, long bit, boolean anyNull) {
    if (rows == 0) offsets.put4(0);
    offsets.need(4L * count);
    long sum = 0; // a null has 0 bytes
    for (int i = 0; i < count; i++) sum += Platform.getInt(memory, at[i] + slot);
    data.need(sum + 8);
    byte[] texts = data.data, ends = offsets.data;
    long end = Platform.BYTE_ARRAY_OFFSET + offsets.size;
    int size = data.size;
    for (int i = 0; i < count; i++, end += 4) {
      long base = at[i], place = Platform.getLong(memory, base + slot);
      copy(memory, base + (place >>> 32), texts, size, (int) place);
      size += (int) place;
      Platform.putInt(ends, end, size);
    }
    data.size = size;
    offsets.size += 4 * count;
    validity(memory, at, count, word, bit, anyNull);
  }

  /** Copies one text. Rows pad texts to 8 bytes, so short ones are copied by words. */
  private static void copy(Object memory, long from, byte[] texts, int at, int size) {
    long to = Platform.BYTE_ARRAY_OFFSET + at;
    if (size > SHORT) Platform.copyMemory(memory, from, texts, to, size);
    else
      for (int j = 0; j < size; j += 8)
        Platform.putLong(texts, to + j, Platform.getLong(memory, from + j));
  }

  void add(Object memory, long[] slots, long[] bases, int count) {
    if (rows == 0) offsets.put4(0);
    for (int i = 0; i < count; i++) {
      if (slots[i] >= 0) {
        long place = Platform.getLong(memory, slots[i]);
        int size = (int) place;
        data.need(size + 8L);
        copy(memory, bases[i] + (place >>> 32), data.data, data.size, size);
        data.size += size;
      }
      offsets.put4(data.size);
    }
    validity(slots, count);
  }

  void store(Body body) {
    head(body);
    if (rows == 0) offsets.put4(0); // pyarrow looks for it, and would crash
    body.buffer(offsets);
    body.buffer(data);
  }
}

/** Decimals in 16 bytes: from longs, or from big-endian bytes. */
static final class Decimals extends Column {
  private final boolean longs;
  private final Bytes data = new Bytes(64);

  Decimals(boolean longs) { this.longs = longs; }

  int bits() { return longs ? 129 : 1; } // 16 bytes are in the row's variable part

  void clear() {
    super.clear();
    data.clear();
  }

  long capacity() { return super.capacity() + data.data.length; }

  void add(Object memory, long[] slots, long[] bases, int count) {
    data.need(16L * count);
    for (int i = 0; i < count; i++) {
      long low = 0, high = 0;
      if (slots[i] >= 0) {
        low = Platform.getLong(memory, slots[i]);
        high = low >> 63;
        if (!longs) {
          long from = bases[i] + (low >>> 32);
          int size = (int) low;
          low = high = Platform.getByte(memory, from) < 0 ? -1 : 0;
          for (int j = 0; j < size; j++) {
            high = high << 8 | low >>> 56;
            low = low << 8 | Platform.getByte(memory, from + j) & 255;
          }
        }
      }
      data.put8(low);
      data.put8(high);
    }
    validity(slots, count);
  }

  void store(Body body) {
    head(body);
    body.buffer(data);
  }
}
