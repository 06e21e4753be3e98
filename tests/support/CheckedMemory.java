// Spark's Platform for the decoder's tests: each access must lie inside its array.

import org.apache.spark.unsafe.Platform;

public class CheckedMemory {
  public static final int BYTE_ARRAY_OFFSET = Platform.BYTE_ARRAY_OFFSET;

  private static void check(Object array, long at, long bytes) {
    long begin = at - BYTE_ARRAY_OFFSET;
    if (begin < 0 || bytes < 0 || begin + bytes > ((byte[]) array).length)
      throw new Error(
          "access to " + bytes + " bytes at " + begin + " of " + ((byte[]) array).length);
  }

  public static byte getByte(Object array, long at) {
    check(array, at, 1);
    return Platform.getByte(array, at);
  }

  public static short getShort(Object array, long at) {
    check(array, at, 2);
    return Platform.getShort(array, at);
  }

  public static int getInt(Object array, long at) {
    check(array, at, 4);
    return Platform.getInt(array, at);
  }

  public static long getLong(Object array, long at) {
    check(array, at, 8);
    return Platform.getLong(array, at);
  }

  public static float getFloat(Object array, long at) {
    check(array, at, 4);
    return Platform.getFloat(array, at);
  }

  public static double getDouble(Object array, long at) {
    check(array, at, 8);
    return Platform.getDouble(array, at);
  }

  public static void putInt(Object array, long at, int value) {
    check(array, at, 4);
    Platform.putInt(array, at, value);
  }

  public static void putLong(Object array, long at, long value) {
    check(array, at, 8);
    Platform.putLong(array, at, value);
  }

  public static void copyMemory(Object from, long at, Object into, long place, long bytes) {
    check(from, at, bytes);
    check(into, place, bytes);
    Platform.copyMemory(from, at, into, place, bytes);
  }
}
