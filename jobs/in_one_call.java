// Makes a list of calls one after the other, in one call from Python; see in_one_call.py.
public final class ListOfCalls {
  private final py4j.reflection.ReflectionEngine engine = new py4j.reflection.ReflectionEngine();
  private final com.fasterxml.jackson.databind.ObjectMapper json =
      new com.fasterxml.jackson.databind.ObjectMapper();

  /**
   * Returns the wanted values. A single one that is no text is returned as it is. Otherwise a JSON
   * list, if all are texts, numbers, booleans or null; else a list: the JSON list, which says where
   * the objects are, then the objects.
   */
  public Object run(String script, Object a, Object b, Object c, Object d, Object e, Object f,
      Object g, Object h, Object i, Object j, Object k, Object l) throws Throwable {
    Object[] given = {a, b, c, d, e, f, g, h, i, j, k, l};
    java.util.List steps = (java.util.List) json.readValue(script, java.util.List.class);
    java.util.List values = new java.util.ArrayList();
    for (int n = 0; n < steps.size() - 1; n++) {
      try {
        values.add(made((java.util.List) steps.get(n), given, values));
      } catch (Throwable error) {
        throw own(error);
      }
    }
    return wanted((java.util.List) steps.get(steps.size() - 1), given, values);
  }

  private Object made(java.util.List step, Object[] given, java.util.List values) throws Throwable {
    String kind = (String) step.get(0), name = (String) step.get(2);
    Object[] arguments = new Object[step.size() - 3];
    for (int n = 0; n < arguments.length; n++) arguments[n] = value(step.get(n + 3), given, values);
    if (kind.equals("call")) {
      Object on = value(step.get(1), given, values);
      if (on == null) throw new NullPointerException(name + " of null");
      return engine.invoke(on, engine.getMethod(on, name, arguments), arguments);
    }
    if (kind.equals("option")) {
      scala.Option option = (scala.Option) value(step.get(1), given, values);
      return option.isDefined() ? option.get() : null;
    }
    String of = (String) step.get(1);
    if (kind.equals("new"))
      return engine.invoke(null, engine.getConstructor(of, arguments), arguments);
    if (kind.equals("field"))
      return py4j.reflection.ReflectionUtil.classForName(of).getField(name).get(null);
    return engine.invoke(null, engine.getMethod(of, name, arguments), arguments);
  }

  private static Object value(Object written, Object[] given, java.util.List values) {
    if (written instanceof java.util.List) {
      int number = ((Integer) ((java.util.List) written).get(0)).intValue();
      return number < 0 ? given[-1 - number] : values.get(number);
    }
    if (written instanceof java.util.Map)
      return java.util.Base64.getDecoder().decode((String) ((java.util.Map) written).get("bytes"));
    return written;
  }

  private Object wanted(java.util.List numbers, Object[] given, java.util.List values)
      throws Exception {
    java.util.List written = new java.util.ArrayList(), found = new java.util.ArrayList();
    found.add(null); // the place of the text
    for (int n = 0; n < numbers.size(); n++) {
      Object one = value(numbers.get(n), given, values);
      if (one instanceof String[]) one = java.util.Arrays.asList((Object[]) one);
      else if (one != null && !isPlain(one)) {
        if (numbers.size() == 1) return one;
        found.add(one);
        one = java.util.Collections.singletonMap("at", Integer.valueOf(found.size() - 1));
      }
      written.add(one);
    }
    String text = json.writeValueAsString(written);
    if (found.size() == 1) return text;
    found.set(0, text);
    return found;
  }

  private static boolean isPlain(Object value) {
    return value instanceof String || value instanceof Boolean || value instanceof Integer
        || value instanceof Long;
  }

  /** Returns what the called method threw, without what reflection puts around it. */
  private static Throwable own(Throwable error) {
    boolean around = error.getClass().getName().startsWith("py4j.")
        || error instanceof java.lang.reflect.InvocationTargetException;
    return around && error.getCause() != null ? own(error.getCause()) : error;
  }
}
