/* The host-PID lock (shim/PROTOCOLS.md): one process at a time looks at the driver's list.
 *
 * PROCESSES of a job look for their PID in the driver's list, in which a process of another job comes and goes as it likes.
 * Each may die before any write, fail to make its context, be stopped anywhere and go on much later, or be stopped for ever.
 * The grace of a holder is not measured here: it may be passed over as soon as it gives no sign of life between a look and the swap.
 * The holder may give one at any moment of the driver's call, BEATS in all. With BESIDE, another thread of the
 * first process takes a turn for a context on another device; with EVICT, the first process, which lives, is taken for
 * dead at some moment, and its slot given to another. At the end one more process comes, which can neither die nor stop, and
 * must have its turn.
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif

#define THREADS  (PROCESSES + 2)	/* one for each process, the one at the end, and the one beside the first */
#define LAST     PROCESSES
#define SECOND   (PROCESSES + 1)	/* thread of process 0 */
#define SLOTS    (PROCESSES + 1)
#define NOBODY   255

#ifndef BEATS
#define BEATS 1
#endif

/* The word: whose turn it is, by slot + 1 (0: free) and generation; which turn, by its count; and the holder's beats. */
byte slot1, generation, count, beat;
byte owner = NOBODY;			/* ghost: the thread that made the word what it is, until it leaves */

byte gen[SLOTS] = 1;			/* of the slot's owner */
bool dead[SLOTS];			/* any waiter may reap */
bool pid_known[SLOTS];			/* the slot's host PID has been written, for this owner */
bool other;				/* the slot of process 0 was given to another process */

int listed;				/* the driver's list: a bit for each process, and one for the other job's */
#define BIT(process)  (1 << (process))
#define STRANGER      BIT(SLOTS)

bool lost[THREADS];			/* ghost: another thread has taken this one's turn */
byte ended;
byte beats;				/* in all */

#define OR_DIE  :: mortal -> goto dying
#define OR_STOP :: mortal -> goto stopped

#ifdef NO_COUNT
#define NEXT count
#define SAME (slot1 == me + 1 && generation == mine)
#else
#define NEXT (count + 1)
#define SAME (slot1 == me + 1 && generation == mine && count == turn BEAT_TOO)
#endif
#ifdef BEAT_IN_TURN
#define BEAT_TOO && beat == 0
#else
#define BEAT_TOO
#endif

#define VACANT (slot1 == 0 || dead[slot1 - 1] || gen[slot1 - 1] != generation)

/* One swap of the word: read it, decide, and replace it if it is the same. Between reading and swapping the word may
 * have changed; then the swap fails, and the loop goes round. So it is one step for a turn that is vacant, which is nobody's:
 * taking it takes it from no thread that lives and has its slot. To pass over a holder is two: it may beat in between. */
inline swap(thread)
{
	if :: owner != NOBODY -> lost[owner] = true :: else fi;
	slot1 = me + 1; generation = mine; count = NEXT; beat = 0; turn = count; owner = thread
}

#ifdef SWAP_BLINDLY
#define UNCHANGED (slot1 == saw_slot1 && generation == saw_generation && count == saw_count)
#else
#define UNCHANGED (slot1 == saw_slot1 && generation == saw_generation && count == saw_count && beat == saw_beat)
#endif

inline take(thread)
{
	do
	:: d_step {
		VACANT ->
		assert(owner == NOBODY || dead[slot1 - 1] || gen[slot1 - 1] != generation);
		swap(thread)
	   };
	   break
#ifndef NO_PASS
	:: d_step { !VACANT -> saw_slot1 = slot1; saw_generation = generation; saw_count = count; saw_beat = beat };
	   if
	   :: d_step {
		UNCHANGED && !VACANT ->
		assert(beat == saw_beat);			/* a holder that has given a sign of life keeps its turn */
		swap(thread); saw_slot1 = 0; saw_generation = 0; saw_count = 0; saw_beat = 0
	      };
	      break
	   :: d_step { !UNCHANGED || VACANT -> saw_slot1 = 0; saw_generation = 0; saw_count = 0; saw_beat = 0 }
	   OR_DIE
	   fi
#endif
	OR_DIE
	od
}

inline leave(thread)
{
	if
#ifdef LEAVE_BLINDLY
	:: d_step { slot1 = 0; generation = 0; beat = 0; if :: owner == thread -> owner = NOBODY :: else fi }
#else
	:: d_step {
		if
		:: SAME -> slot1 = 0; generation = 0; beat = 0; owner = NOBODY
		:: else
		fi;
		assert(owner != thread)				/* a turn that was not taken away is given up */
	   }
#endif
	OR_DIE
	fi
}

/* A call of ioctl, inside the driver, by the thread that has the turn, or had it. */
inline maybe_beat()
{
	if
	:: d_step {
		beats < BEATS ->
		if :: slot1 == me + 1 && generation == mine && count == turn -> beat++; beats++ :: else fi
	   }
	:: true
	OR_DIE OR_STOP
	fi
}

/* PIDs of other slots, which are known to be theirs. */
inline without_others(set)
{
	d_step {
		j = 0;
		do
		:: j < SLOTS -> if :: j != me && pid_known[j] && !dead[j] -> set = set & ~BIT(j) :: else fi; j++
		:: else -> break
		od;
		j = 0
	}
}

#define ONE(set) ((set) != 0 && ((set) & ((set) - 1)) == 0)

proctype process(byte me; bool mortal)
{
	byte mine = gen[me], turn, j, saw_slot1, saw_generation, saw_count, saw_beat;
	int before, after;
	bool made, missed, ours;

#ifdef SECOND_CONTEXT
	listed = listed | BIT(me);				/* it has a context */
#endif
	take(me);
	if :: before = listed OR_DIE OR_STOP fi;
	maybe_beat();
	if							/* the driver's call */
	:: d_step { made = true; listed = listed | BIT(me) }
	:: mortal						/* it fails */
	OR_DIE OR_STOP
	fi;
#ifdef CHECK_FIRST
	if :: ours = SAME OR_STOP fi;
#endif
	if :: d_step { after = listed; missed = lost[me] } OR_DIE OR_STOP fi;
#ifdef NO_CHECK
	ours = true;
#endif
#if !defined(CHECK_FIRST) && !defined(NO_CHECK)
	if :: ours = SAME OR_STOP fi;
#endif
	if
#ifdef FAILED_CONTEXT
	:: ours ->
#else
	:: ours && made ->
#endif
	   after = after & ~before;
	   if :: !ONE(after) -> without_others(after) :: else fi;
	   if
	   :: ONE(after) ->
		assert(after == BIT(me));			/* it is our own */
		assert(!missed);				/* and was found in our own turn */
		if
#ifdef ANY_GENERATION
		:: d_step { assert(!other || me != 0); pid_known[me] = true }
#else
		:: d_step { if :: gen[me] == mine -> pid_known[me] = true :: else fi }
#endif
		OR_DIE OR_STOP
		fi
	   :: else
	   fi
	:: else
	fi;
	leave(me);
	goto out;
dying:
	atomic { dead[me] = true; pid_known[me] = false; listed = listed & ~BIT(me) };
	goto out;
stopped:
	atomic { ended++; before = 0; after = 0; made = false; missed = false; ours = false; turn = 0 };
end_stopped:
	false;
out:
	atomic { ended++; before = 0; after = 0; made = false; missed = false; ours = false; turn = 0 }
}

/* A thread of process 0, for a context on another device. */
proctype beside()
{
	byte me = 0, mine = gen[0], turn, saw_slot1, saw_generation, saw_count, saw_beat;
	bool mortal = false;

	if
	:: take(SECOND); leave(SECOND)
	:: true
	fi;
dying:
	ended++
}

active proctype stranger()
{
	listed = listed | STRANGER;
end:	listed = listed & ~STRANGER
}

proctype evictor()
{
end:	d_step { !dead[0] && !other -> gen[0]++; other = true; pid_known[0] = false }
}

init
{
	byte n;

	atomic {
		for (n : 0 .. PROCESSES - 1) { run process(n, true) }
#ifdef BESIDE
		run beside();
#endif
#ifdef EVICT
		run evictor()
#endif
	}
#ifdef BESIDE
	ended == PROCESSES + 1;
#else
	ended == PROCESSES;
#endif
	run process(LAST, false);
end:	ended > PROCESSES + 1
}
