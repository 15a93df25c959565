import java.util.concurrent.atomic.AtomicLong;
import org.apache.pekko.actor.UntypedAbstractActor;

/** Counts what it is told and returns what it is asked. */
final class Counter extends UntypedAbstractActor {
  /** Actors that have handled a first message. */
  static final AtomicLong STARTED = new AtomicLong();

  private long notes;

  @Override
  public void onReceive(Object message) {
    if (message instanceof Msg.Note) {
      if (notes++ == 0) {
        STARTED.incrementAndGet();
      }
    } else if (message instanceof Msg.Echo echo) {
      getSender().tell(new Msg.Echoed(echo.words()), getSelf());
    } else if (message instanceof Msg.Count) {
      getSender().tell(new Msg.Counted(notes), getSelf());
    } else {
      unhandled(message);
    }
  }
}
