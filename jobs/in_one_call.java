// Makes a list of calls one after the other, in one call from Python; see in_one_call.py.
public final class ListOfCalls {
  private static final int BYTES_OF_A_PACKET = 6000;
  private static final int LONG_TEXT = 200;
  private static final int MOST_METHODS = 10000;

  private py4j.GatewayServer server;
  private py4j.Gateway gateway;
  private final py4j.reflection.ReflectionEngine engine = new py4j.reflection.ReflectionEngine();
  private final java.util.Map methods = new java.util.concurrent.ConcurrentHashMap();
  private final com.fasterxml.jackson.databind.ObjectMapper json =
      new com.fasterxml.jackson.databind.ObjectMapper();

  /** Makes what `run` returns known to a server of py4j. */
  public Object of(py4j.GatewayServer server) {
    this.server = server;
    gateway = server.getGateway();
    return this;
  }

  /**
   * Returns the wanted values: a single object as it is, else bytes, which py4j passes on faster than
   * a text. The first four say how many the head takes; behind it stand the long texts. The head is
   * a JSON list. An object in it is {"of": as py4j names it}, or {"at": its number in a list}, whose
   * name is the last value; a long text is {"text": [its first byte, its end]}. The last calls of the
   * script are made in any case.
   */
  public Object run(String script, Object a, Object b, Object c, Object d, Object e, Object f,
      Object g, Object h, Object i, Object j, Object k, Object l) throws Throwable {
    Object[] given = {a, b, c, d, e, f, g, h, i, j, k, l};
    java.util.List steps = (java.util.List) json.readValue(script, java.util.List.class);
    java.util.List values = new java.util.ArrayList();
    int count = steps.size() - 3, last = ((Integer) steps.get(count)).intValue();
    boolean each = ((Boolean) steps.get(count + 2)).booleanValue();
    try {
      for (int n = 0; n < last; n++) values.add(made((java.util.List) steps.get(n), given, values));
    } catch (Throwable error) {
      end(steps, last, count, given, values);
      throw own(error);
    }
    end(steps, last, count, given, values);
    return wanted((java.util.List) steps.get(count + 1), each, given, values);
  }

  /** Makes the last calls of a script. If they fail, nothing is said. */
  private void end(
      java.util.List steps, int last, int count, Object[] given, java.util.List values) {
    while (values.size() < last) values.add(null);
    for (int n = last; n < count; n++) {
      Object found = null;
      try {
        found = made((java.util.List) steps.get(n), given, values);
      } catch (Throwable error) {
        // of a context that was stopped, for example
      }
      values.add(found);
    }
  }

  private Object made(java.util.List step, Object[] given, java.util.List values) throws Throwable {
    String kind = (String) step.get(0), name = (String) step.get(2);
    Object[] arguments = new Object[step.size() - 3];
    for (int n = 0; n < arguments.length; n++) arguments[n] = value(step.get(n + 3), given, values);
    if (kind.equals("call")) {
      Object on = value(step.get(1), given, values);
      if (on == null) throw new NullPointerException(name + " of null");
      return engine.invoke(on, method(on.getClass(), on, name, arguments), arguments);
    }
    if (kind.equals("option")) {
      scala.Option option = (scala.Option) value(step.get(1), given, values);
      return option.isDefined() ? option.get() : null;
    }
    String of = (String) step.get(1);
    if (kind.equals("new")) return engine.invoke(null, method(of, null, "", arguments), arguments);
    if (kind.equals("field"))
      return py4j.reflection.ReflectionUtil.classForName(of).getField(name).get(null);
    return engine.invoke(null, method(of, null, name, arguments), arguments);
  }

  /**
   * Returns what py4j chooses for these types of arguments. py4j itself keeps its choice for one
   * thread alone: each new thread would look through all methods of a class again.
   *
   * @param of a class, or the name of one
   * @param on null for a static method, or a constructor, whose name is ""
   */
  private py4j.reflection.MethodInvoker method(
      Object of, Object on, String name, Object[] arguments) {
    Object[] key = new Object[arguments.length + 2];
    key[0] = of;
    key[1] = name;
    for (int n = 0; n < arguments.length; n++)
      key[n + 2] = arguments[n] == null ? null : arguments[n].getClass();
    java.util.List chosen = java.util.Arrays.asList(key);
    Object found = methods.get(chosen);
    if (found == null) {
      if (on != null) found = engine.getMethod(on, name, arguments);
      else if (name.isEmpty()) found = engine.getConstructor((String) of, arguments);
      else found = engine.getMethod((String) of, name, arguments);
      if (methods.size() >= MOST_METHODS) methods.clear();
      methods.put(chosen, found);
    }
    return (py4j.reflection.MethodInvoker) found;
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

  private Object wanted(java.util.List numbers, boolean each, Object[] given, java.util.List values)
      throws Exception {
    java.util.List written = new java.util.ArrayList(), found = new java.util.ArrayList();
    java.io.ByteArrayOutputStream texts = new java.io.ByteArrayOutputStream();
    for (int n = 0; n < numbers.size(); n++) {
      Object one = value(numbers.get(n), given, values);
      if (one instanceof String[]) one = java.util.Arrays.asList((Object[]) one);
      else if (one instanceof byte[]) {
        String text = java.util.Base64.getEncoder().encodeToString((byte[]) one);
        one = java.util.Collections.singletonMap("bytes", text);
      } else if (one instanceof String && ((String) one).length() > LONG_TEXT) {
        Integer first = Integer.valueOf(texts.size());
        texts.write(((String) one).getBytes("UTF-8"));
        Object[] place = {first, Integer.valueOf(texts.size())};
        one = java.util.Collections.singletonMap("text", java.util.Arrays.asList(place));
      } else if (one != null && !isPlain(one)) {
        if (numbers.size() == 1) return one;
        if (!each) found.add(one);
        one = each ? java.util.Collections.singletonMap("of", named(one))
                   : java.util.Collections.singletonMap("at", Integer.valueOf(found.size() - 1));
      }
      written.add(one);
    }
    if (!each) written.add(named(found));
    byte[] head = json.writeValueAsString(written).getBytes("UTF-8");
    java.nio.ByteBuffer answer = java.nio.ByteBuffer.allocate(4 + head.length + texts.size());
    answer.putInt(head.length).put(head).put(texts.toByteArray());
    if (answer.capacity() > BYTES_OF_A_PACKET) sendPacketsAtOnce();
    return answer.array();
  }

  private String named(Object one) { return gateway.getReturnObject(one).getCommandPart(); }

  /** Without this, the last packet of a long answer waits 40 ms for the others to be confirmed. */
  private void sendPacketsAtOnce() {
    try {
      Object known =
          org.apache.commons.lang3.reflect.FieldUtils.readField(server, "connections", true);
      Object[] connections = ((java.util.List) known).toArray();
      for (int n = 0; n < connections.length; n++)
        ((py4j.Py4JServerConnection) connections[n]).getSocket().setTcpNoDelay(true);
    } catch (Exception error) {
      // another py4j, or a connection that ends: the answer comes late
    }
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
