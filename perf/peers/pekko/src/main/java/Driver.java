import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import org.apache.pekko.actor.ActorRef;
import org.apache.pekko.actor.UntypedAbstractActor;

/** Sends and measures, as an actor among the others. One run at a time. */
final class Driver extends UntypedAbstractActor {
  /** What a run came to: messages or answers, the time, and the sorted nanoseconds of each answer. */
  record Run(long n, long nanos, int[] seen) {
    double perSecond() {
      return n * 1e9 / nanos;
    }

    int at(double quantile) {
      return seen[Math.min(seen.length - 1, (int) (quantile * seen.length))];
    }
  }

  record Tell(long nanos, CompletableFuture<Run> done) {
    Tell(long nanos) {
      this(nanos, new CompletableFuture<>());
    }
  }

  record Ask(int inFlight, long nanos, CompletableFuture<Run> done) {
    Ask(int inFlight, long nanos) {
      this(inFlight, nanos, new CompletableFuture<>());
    }
  }

  record Populate(int from, int n) {}

  private enum Step {
    STEP
  }

  /** Messages between two questions how far the entities have come, and questions that may be open. */
  private static final int MARK_EVERY = 8192;

  private static final int MARKS_OPEN = 3;
  private static final int STRIDE = 256;

  private final ActorRef[] targets;
  private long began;
  private long end;

  private Tell tell;
  /** Over all runs, as the entities count. */
  private long toldBefore;

  private long told;
  private long counted;
  private int open;
  private boolean finishing;
  private boolean paused;

  private Ask ask;
  private long[] sentAt;
  private int[] seen = new int[1 << 22];
  private int answers;
  private int inFlight;

  Driver(ActorRef[] targets) {
    this.targets = targets;
  }

  private ActorRef target(long key) {
    return targets[(int) key];
  }

  private static long[] words(long word) {
    return new long[] {word, word, word, word, word, word, word, word};
  }

  @Override
  public void onReceive(Object message) {
    if (message instanceof Msg.Echoed echoed) {
      answered(echoed.words());
    } else if (message instanceof Step) {
      step();
    } else if (message instanceof Msg.Counted count) {
      counted(count.notes());
    } else if (message instanceof Tell start) {
      tell = start;
      toldBefore += told;
      told = 0;
      finishing = false;
      began = System.nanoTime();
      end = began + start.nanos();
      step();
    } else if (message instanceof Ask start) {
      ask = start;
      answers = 0;
      inFlight = start.inFlight();
      sentAt = new long[inFlight];
      began = System.nanoTime();
      end = began + start.nanos();
      for (int i = 0; i < inFlight; i++) {
        question(i, began);
      }
    } else if (message instanceof Populate some) {
      for (int i = 0; i < some.n(); i++) {
        targets[0].tell(new Msg.Note(some.from() + i, words(i)), getSelf());
      }
    } else {
      unhandled(message);
    }
  }

  private void step() {
    for (int i = 0; i < STRIDE; i++) {
      long key = told % targets.length;
      target(key).tell(new Msg.Note(key, words(told)), getSelf());
      if (told % MARK_EVERY == 0) {
        target(key).tell(new Msg.Count(key), getSelf());
        open++;
      }
      told++;
    }
    if (System.nanoTime() >= end) {
      finishing = true;
      // Waits for the open questions first, whose answers are not to be added up.
      if (open == 0) {
        countAll();
      }
    } else if (open > MARKS_OPEN) {
      paused = true;
    } else {
      getSelf().tell(Step.STEP, getSelf());
    }
  }

  private void countAll() {
    counted = 0;
    open = -targets.length;
    for (int key = 0; key < targets.length; key++) {
      target(key).tell(new Msg.Count(key), getSelf());
    }
  }

  private void counted(long notes) {
    if (open > 0) {
      open--;
      if (finishing && open == 0) {
        countAll();
      } else if (!finishing && paused) {
        paused = false;
        getSelf().tell(Step.STEP, getSelf());
      }
      return;
    }
    counted += notes;
    if (++open == 0) {
      if (counted == toldBefore + told) {
        tell.done().complete(new Run(told, System.nanoTime() - began, null));
      } else {
        tell.done().completeExceptionally(new IllegalStateException((toldBefore + told) + " messages were sent and " + counted + " handled"));
      }
    }
  }

  private void question(long i, long now) {
    long key = i % targets.length;
    sentAt[(int) (i % sentAt.length)] = now;
    target(key).tell(new Msg.Echo(key, words(i)), getSelf());
  }

  private void answered(long[] words) {
    long now = System.nanoTime();
    long i = words[0];
    if (answers == seen.length) {
      seen = Arrays.copyOf(seen, 2 * seen.length);
    }
    seen[answers++] = (int) Math.min(now - sentAt[(int) (i % sentAt.length)], Integer.MAX_VALUE);
    if (now < end) {
      question(i + sentAt.length, System.nanoTime());
    } else if (--inFlight == 0) {
      int[] sorted = Arrays.copyOf(seen, answers);
      Arrays.sort(sorted);
      ask.done().complete(new Run(answers, now - began, sorted));
    }
  }
}
