// Columns of arrays, maps and structs. Part of the encoder's text.

/** Arrays; or maps, whose elements are structs of key and value. */
static final class Lists extends Column {
  private final Column elements, keys; // keys of a map, null for arrays
  private final Bytes offsets = new Bytes(64);

  Lists(Column elements, Column keys) {
    this.elements = elements;
    this.keys = keys;
  }

  int bits() { return 33; }

  void clear() {
    super.clear();
    offsets.clear();
    elements.clear();
  }

  long capacity() { return super.capacity() + offsets.data.length + elements.capacity(); }

  void add(Object memory, long[] slots, long[] bases, int count) {
    if (rows == 0) offsets.put4(0);
    for (int i = 0; i < count; i++) {
      if (slots[i] >= 0) {
        long at = bases[i] + (Platform.getLong(memory, slots[i]) >>> 32);
        if (keys == null) elements.addElements(memory, at, (int) Platform.getLong(memory, at));
        else entries(memory, at + 8, at + 8 + Platform.getLong(memory, at));
      }
      offsets.put4(elements.rows);
    }
    validity(slots, count);
  }

  private void entries(Object memory, long keyArray, long valueArray) {
    int count = (int) Platform.getLong(memory, keyArray);
    keys.addElements(memory, keyArray, count);
    ((Struct) elements).fields[1].addElements(memory, valueArray, count);
    elements.rows += count;
  }

  void store(Body body) {
    head(body);
    if (rows == 0) offsets.put4(0); // pyarrow looks for it, and would crash
    body.buffer(offsets);
    elements.store(body);
  }
}

/** Structs. */
static final class Struct extends Column {
  final Column[] fields;
  private final long[] starts = new long[STEP], slots = new long[STEP];

  Struct(Column[] fields) { this.fields = fields; }

  int bits() {
    int sum = 1;
    for (int f = 0; f < fields.length; f++) sum += fields[f].bits();
    return sum;
  }

  void clear() {
    super.clear();
    for (int f = 0; f < fields.length; f++) fields[f].clear();
  }

  long capacity() {
    long sum = super.capacity();
    for (int f = 0; f < fields.length; f++) sum += fields[f].capacity();
    return sum;
  }

  void add(Object memory, long[] places, long[] bases, int count) {
    for (int i = 0; i < count; i++) {
      long at = places[i];
      starts[i] = at < 0 ? -1 : bases[i] + (Platform.getLong(memory, at) >>> 32);
    }
    int nullBytes = 8 * ((fields.length + 63) >> 6);
    for (int f = 0; f < fields.length; f++) {
      int word = 8 * (f >> 6), slot = nullBytes + 8 * f;
      for (int i = 0; i < count; i++) {
        long start = starts[i];
        boolean isNull =
            start < 0 || (Platform.getLong(memory, start + word) >>> (f & 63) & 1L) != 0;
        slots[i] = isNull ? -1 : start + slot;
      }
      fields[f].add(memory, slots, starts, count);
    }
    validity(places, count);
  }

  void store(Body body) {
    head(body);
    for (int f = 0; f < fields.length; f++) fields[f].store(body);
  }
}
