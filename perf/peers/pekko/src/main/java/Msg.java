/** What actors send each other; `words` are the 64 bytes. */
public sealed interface Msg {
  record Note(long key, long[] words) implements Msg {}

  record Echo(long key, long[] words) implements Msg {}

  record Echoed(long[] words) implements Msg {}

  record Count(long key) implements Msg {}

  record Counted(long notes) implements Msg {}
}
