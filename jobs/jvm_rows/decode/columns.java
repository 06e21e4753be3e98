// Columns over the buffers of one frame. A column is unpacked when a row first asks for it.

/** Makes columns of the text of `kinds.py`, which describes how their values lie in a frame. */
static final class Kinds {
  static final int BITS = 'b', BYTES = 's', LIST = 'a', MAP = 'm', STRUCT = '(', NOTHING = 'n';
  private final String text;
  private int at = 0;

  Kinds(String text) { this.text = text; }

  /** Returns the column of the kind that comes next; `type` is what Spark takes it for. */
  Column column(org.apache.spark.sql.types.DataType type) {
    while (type instanceof org.apache.spark.sql.types.UserDefinedType)
      type = ((org.apache.spark.sql.types.UserDefinedType) type).sqlType();
    int kind = text.charAt(at++);
    Column[] children = new Column[0];
    if (kind == LIST) {
      children = new Column[] {column(((org.apache.spark.sql.types.ArrayType) type).elementType())};
    } else if (kind == MAP) {
      org.apache.spark.sql.types.MapType map = (org.apache.spark.sql.types.MapType) type;
      Column[] entry = new Column[2];
      entry[0] = column(map.keyType());
      entry[1] = column(map.valueType());
      children = new Column[] {new Column(map, STRUCT, 0, entry)};
    } else if (kind == STRUCT) {
      org.apache.spark.sql.types.StructField[] fields =
          ((org.apache.spark.sql.types.StructType) type).fields();
      children = new Column[fields.length];
      for (int f = 0; f < fields.length; f++) children[f] = column(fields[f].dataType());
      if (text.charAt(at++) != ')') throw new IllegalArgumentException("kinds: " + text);
    }
    return new Column(type, kind, width(kind), children);
  }

  /** Refuses a text that goes on behind the last column. */
  void end() {
    if (at != text.length()) throw new IllegalArgumentException("kinds: " + text);
  }

  private int width(int kind) {
    switch (kind) {
      case '1': return 1;
      case '2': return 2;
      case '4': return 4;
      case '8': return 8;
      case 'd':
      case 'D': return 16;
      case BITS:
      case BYTES:
      case LIST:
      case MAP:
      case STRUCT:
      case NOTHING: return 0;
      default: throw new IllegalArgumentException("kind '" + (char) kind + "' in " + text);
    }
  }
}

/** One column of a frame, or a child of one. One class for all kinds, so that calls are inlined. */
static final class Column extends org.apache.spark.sql.vectorized.ColumnVector {
  final int kind;
  final int width; // bytes per value; 0 if they differ or are bits
  final Column[] children;
  final Piece validPiece = new Piece(), offsetsPiece = new Piece(), dataPiece = new Piece();
  int length = 0, nulls = 0;
  private boolean waiting = false;
  private final Part[] parts; // of each value; null if values have none
  private Arrow arrow = null;
  private byte[] valid = null, offsets = null, data = null;
  private long validAt = 0, offsetsAt = 0, dataAt = 0;

  Column(org.apache.spark.sql.types.DataType type, int kind, int width, Column[] children) {
    super(type);
    this.kind = kind;
    this.width = width;
    this.children = children;
    boolean interval = type instanceof org.apache.spark.sql.types.CalendarIntervalType;
    boolean variant = "variant".equals(type.typeName()); // 3.5 has no such class
    parts = kind == Kinds.BYTES && (interval || variant) ? new Part[interval ? 3 : 2] : null;
    for (int p = 0; parts != null && p < parts.length; p++) parts[p] = new Part(this, p);
  }

  boolean hasOffsets() { return kind == Kinds.BYTES || kind == Kinds.LIST || kind == Kinds.MAP; }

  boolean hasData() { return width > 0 || kind == Kinds.BYTES || kind == Kinds.BITS; }

  /** Takes the place of the last frame's values. `of` has checked the lengths of the buffers. */
  void begin(Arrow of, int values, int nullCount) {
    arrow = of;
    length = values;
    nulls = nullCount;
    waiting = values > 0 && kind != Kinds.NOTHING;
  }

  /** Unpacks the buffers and checks all offsets and the number of nulls. */
  private void load() {
    if (nulls > 0) {
      validPiece.unpack(arrow);
      valid = validPiece.bytes;
      validAt = validPiece.at;
      int found = length - Arrow.ones(valid, validAt, length);
      if (found != nulls)
        throw arrow.damaged("column of " + type + " says " + nulls + " nulls and has " + found);
    }
    if (hasData()) {
      dataPiece.unpack(arrow);
      data = dataPiece.bytes;
      dataAt = dataPiece.at;
    }
    if (hasOffsets()) {
      offsetsPiece.unpack(arrow);
      offsets = offsetsPiece.bytes;
      offsetsAt = offsetsPiece.at;
      int most = kind == Kinds.BYTES ? dataPiece.size : children[0].length;
      if (!Arrow.ascend(offsets, offsetsAt, length, most))
        throw arrow.damaged("offsets of a column of " + type + " lead out of its " + most);
    }
    waiting = false;
  }

  public void close() {}

  public boolean hasNull() { return nulls > 0; }

  public int numNulls() { return nulls; }

  public boolean isNullAt(int i) {
    if (waiting) load();
    if (nulls == 0) return false;
    if (kind == Kinds.NOTHING) return true;
    return (Platform.getByte(valid, validAt + (i >> 3)) >> (i & 7) & 1) == 0;
  }

  public boolean getBoolean(int i) {
    if (waiting) load();
    return (Platform.getByte(data, dataAt + (i >> 3)) >> (i & 7) & 1) != 0;
  }

  public byte getByte(int i) {
    if (waiting) load();
    return Platform.getByte(data, dataAt + i);
  }

  public short getShort(int i) {
    if (waiting) load();
    return Platform.getShort(data, dataAt + 2L * i);
  }

  public int getInt(int i) {
    if (waiting) load();
    return Platform.getInt(data, dataAt + 4L * i);
  }

  public long getLong(int i) {
    if (waiting) load();
    return Platform.getLong(data, dataAt + 8L * i);
  }

  public float getFloat(int i) {
    if (waiting) load();
    return Platform.getFloat(data, dataAt + 4L * i);
  }

  public double getDouble(int i) {
    if (waiting) load();
    return Platform.getDouble(data, dataAt + 8L * i);
  }

  public org.apache.spark.sql.types.Decimal getDecimal(int i, int precision, int scale) {
    if (isNullAt(i)) return null;
    if (width == 8)
      return org.apache.spark.sql.types.Decimal.createUnsafe(getLong(i), precision, scale);
    long low = Platform.getLong(data, dataAt + 16L * i);
    long high = Platform.getLong(data, dataAt + 16L * i + 8);
    if (precision <= 18 && high == low >> 63)
      return org.apache.spark.sql.types.Decimal.createUnsafe(low, precision, scale);
    byte[] digits = new byte[16]; // big-endian
    Platform.putLong(digits, Platform.BYTE_ARRAY_OFFSET, Long.reverseBytes(high));
    Platform.putLong(digits, Platform.BYTE_ARRAY_OFFSET + 8, Long.reverseBytes(low));
    java.math.BigDecimal value = new java.math.BigDecimal(new java.math.BigInteger(digits), scale);
    if (value.precision() > precision)
      throw arrow.damaged("decimal of " + value.precision() + " digits in a column of " + type);
    return org.apache.spark.sql.types.Decimal.apply(value, precision, scale);
  }

  public org.apache.spark.unsafe.types.UTF8String getUTF8String(int i) {
    if (isNullAt(i)) return null;
    int from = offset(i);
    return org.apache.spark.unsafe.types.UTF8String.fromAddress(
        data, dataAt + from, offset(i + 1) - from);
  }

  public byte[] getBinary(int i) {
    if (isNullAt(i)) return null;
    int from = offset(i);
    byte[] bytes = new byte[offset(i + 1) - from];
    Platform.copyMemory(data, dataAt + from, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
    return bytes;
  }

  public org.apache.spark.sql.vectorized.ColumnarArray getArray(int i) {
    if (isNullAt(i)) return null;
    int from = offset(i);
    return new org.apache.spark.sql.vectorized.ColumnarArray(
        children[0], from, offset(i + 1) - from);
  }

  public org.apache.spark.sql.vectorized.ColumnarMap getMap(int i) {
    if (isNullAt(i)) return null;
    int from = offset(i);
    return new org.apache.spark.sql.vectorized.ColumnarMap(
        children[0].children[0], children[0].children[1], from, offset(i + 1) - from);
  }

  public org.apache.spark.sql.vectorized.ColumnVector getChild(int i) {
    if (parts != null) return parts[i];
    return children[i];
  }

  /** Returns where the number at `place` of a value's bytes lies; a value has at least `least`. */
  private long inside(int i, int place, int least) {
    if (isNullAt(i)) throw new IllegalStateException("a null has no parts");
    int from = offset(i), size = offset(i + 1) - from;
    if (size < least) throw arrow.damaged(size + " bytes as a " + type);
    return dataAt + from + place;
  }

  int intInside(int i, int place, int least) {
    return Platform.getInt(data, inside(i, place, least));
  }

  long longInside(int i, int place, int least) {
    return Platform.getLong(data, inside(i, place, least));
  }

  private int offset(int i) { return Platform.getInt(offsets, offsetsAt + 4L * i); }
}

/** A part of each value of a column, as Spark asks for it. Of a calendar interval: months, days,
    microseconds. Of a variant: its value, its metadata. The bytes are those of Spark's own rows:
    the parts one after the other, for a variant behind the length of its value. */
static final class Part extends org.apache.spark.sql.vectorized.ColumnVector {
  private static final int INTERVAL = 16, LENGTH = 4; // bytes
  private final Column of;
  private final int number;

  Part(Column of, int number) {
    super(of.dataType());
    this.of = of;
    this.number = number;
  }

  public int getInt(int i) { return of.intInside(i, 4 * number, INTERVAL); }

  public long getLong(int i) { return of.longInside(i, 8, INTERVAL); }

  public byte[] getBinary(int i) {
    int length = of.intInside(i, 0, LENGTH);
    byte[] bytes = of.getBinary(i);
    if (length < 0 || length > bytes.length - LENGTH)
      throw new IllegalStateException("a variant of " + length + " bytes in " + bytes.length);
    int end = LENGTH + length;
    return number == 0 ? java.util.Arrays.copyOfRange(bytes, LENGTH, end)
                       : java.util.Arrays.copyOfRange(bytes, end, bytes.length);
  }

  public void close() {}

  public boolean hasNull() { return of.hasNull(); }

  public int numNulls() { return of.numNulls(); }

  public boolean isNullAt(int i) { return of.isNullAt(i); }

  public boolean getBoolean(int i) { throw new UnsupportedOperationException(); }

  public byte getByte(int i) { throw new UnsupportedOperationException(); }

  public short getShort(int i) { throw new UnsupportedOperationException(); }

  public float getFloat(int i) { throw new UnsupportedOperationException(); }

  public double getDouble(int i) { throw new UnsupportedOperationException(); }

  public org.apache.spark.sql.types.Decimal getDecimal(int i, int precision, int scale) {
    throw new UnsupportedOperationException();
  }

  public org.apache.spark.unsafe.types.UTF8String getUTF8String(int i) {
    throw new UnsupportedOperationException();
  }

  public org.apache.spark.sql.vectorized.ColumnarArray getArray(int i) {
    throw new UnsupportedOperationException();
  }

  public org.apache.spark.sql.vectorized.ColumnarMap getMap(int i) {
    throw new UnsupportedOperationException();
  }

  public org.apache.spark.sql.vectorized.ColumnVector getChild(int i) {
    throw new UnsupportedOperationException();
  }
}
