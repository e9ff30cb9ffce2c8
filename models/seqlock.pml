/* The sequence lock (docs/protocols.md, section 2): what an account holds, by kind, in one piece.
 *
 * Two threads of one process write the account, a reader reads it, the process may die at any step, and the slot's next
 * owner enters the account before its first change there. A writer that is preempted or stopped for ever is one that is not scheduled, or is killed.
 *
 * Each figure is a word of its own, stored and loaded in a step of its own. The steps of one thread are seen in
 * their order, which is what release and acquire give the code: each store of `turn` and of a figure is a release, so
 * that whoever sees it also sees the phase before it; each load is an acquire, so that the second look at `turn` is not
 * made before the figures are read. STORES_REORDERED shows what happens without.
 */

#ifndef WRITES
#define WRITES 1		/* by each thread */
#endif
#ifndef READERS
#define READERS 1
#endif

#define KINDS 2

#define FREE    0
#define JOINING 1
#define ACTIVE  2
#ifdef NO_GENERATION
#define STATUS(gen, state) (state)
#else
#define STATUS(gen, state) ((gen) * 4 + (state))
#endif
#define state(s) ((s) % 4)
#ifdef NO_GENERATION
#define entered(g) true
#else
#define entered(g) (owner == (g))
#endif

#define phase(t) ((t) % 4)
#ifdef SINGLE_COPY
#define same(now, t) ((now) == (t))
#else
#define same(now, t) (((now) | 1) == ((t) | 1))		/* from phase 0 to 1 the copy that is read stays as it is */
#endif

typedef figures { byte total; byte kind[KINDS] };

#define A 0
#define B 1

byte status = STATUS(0, ACTIVE);
byte turn;
bit owner;			/* the generation that the account carries */
figures copy[2];

/* Not in the region: whose slot it is, who lives, and the writes that a reader may have seen, and must have seen. */
bit tenure;
bool alive[2] = true;
byte begun[2], ended[2];
byte stopped;			/* threads that are over */
bool entering;			/* a lock of the process's own, gone with it */

#ifdef SINGLE_COPY
#define first  A
#define source A
#else
#define first  B
#ifdef WRONG_COPY
#define source A
#else
#define source (phase(t) == 3 -> B : A)
#endif
#endif

inline take()			/* CAS(turn, n+0, n+1) */
{
	do
	:: t = turn;
	   if
#ifdef STORE_TURN
	   :: phase(t) == 0 -> d_step { turn = t + 1; begun[g]++ } break
#else
	   :: phase(t) == 0 ->
	      d_step {
		got = (turn == t);
		if :: got -> turn = t + 1; begun[g]++ :: else fi
	      }
	      if :: got -> break :: else fi
#endif
	   :: else -> turn != t
	   fi
	od
}

inline put(c)
{
	copy[c].total = total;
	copy[c].kind[kind] = bytes
}

inline zero(c)
{
	copy[c].total = 0;
	copy[c].kind[0] = 0;
	copy[c].kind[1] = 0
}

inline enter()			/* before this owner's first change of the account */
{
	if
	:: owner == g
	:: else ->
#ifndef ENTER_UNLOCKED
	   atomic { !entering -> entering = true }
#endif
	   if
#ifndef ENTER_UNLOCKED
	   :: owner == g
#endif
	   :: else ->
#ifdef GENERATION_FIRST
	      owner = g;
#endif
	      zero(A);
	      zero(B);
#ifndef NO_RESET
	      t = turn;
	      turn = t - phase(t) + 4;
#endif
	      owner = g
	   fi;
	   entering = false
	fi
}

proctype thread(bit g; byte kind)
{
	byte t, n, total, bytes;
	bool got;

	{
		do
		:: n < WRITES ->
		   n++;
		   enter();
		   take();
		   atomic { total = copy[A].total + 1; bytes = copy[A].kind[kind] + 1 }
		   put(first);
#ifdef STORES_REORDERED
		   copy[A].total = total;
#endif
		   d_step { turn = t + 3; ended[g]++ }
		   put(A);
		   turn = t + 4;
		   d_step { t = 0; total = 0; bytes = 0; got = false }
		:: else -> break
		od
	} unless { !alive[g] };
	atomic { t = 0; n = 0; total = 0; bytes = 0; got = false; stopped++ }
}

/* Death, reaping (which leaves the usage alone), and the next owner. Or none of it. */
proctype successor()
{
	if
	:: goto out
	:: alive[0] = false; stopped == 2
	fi;
	if
	:: goto out
	:: status = STATUS(0, FREE)
	fi;
	atomic { status = STATUS(1, JOINING); tenure = 1; entering = false }
	status = STATUS(1, ACTIVE);
	atomic { run thread(1, 0); run thread(1, 1) }
out:
}

proctype reader()
{
	byte s, t, before, total, bytes[KINDS];
	bit g;
	bool quiet;

	atomic { s = status; g = tenure; if :: state(s) != ACTIVE -> goto out :: else fi }
	do
	:: atomic { t = turn; before = ended[g]; quiet = !alive[g] }
#ifdef SINGLE_COPY
	   if :: phase(t) != 0 -> turn != t; goto again :: else fi;
#endif
	   if :: !entered(g) -> d_step { total = 0; bytes[0] = 0; bytes[1] = 0 } break :: else fi;
	   total = copy[source].total;
	   bytes[0] = copy[source].kind[0];
	   bytes[1] = copy[source].kind[1];
	   if
	   :: same(turn, t) -> break
	   :: else -> assert(!quiet || tenure != g)		/* nobody tries twice because of the dead */
	   fi;
again:
	   skip
	od;
	if
	:: status == s ->
	   assert(total == bytes[0] + bytes[1]);		/* in one piece */
	   assert(before <= total && total <= begun[g])		/* and of this owner, and of this moment */
	:: else							/* the slot has changed hands */
	fi;
out:
	atomic { s = 0; t = 0; before = 0; total = 0; bytes[0] = 0; bytes[1] = 0; g = 0; quiet = false }
}

init
{
	byte n;

	atomic {
		run thread(0, 0);
		run thread(0, 1);
		run successor();
		for (n : 1 .. READERS) { run reader() }
	}
	_nr_pr == 1;
	assert(!alive[0] || copy[A].total == 2 * WRITES)	/* no write was lost between the threads */
}
