/* The sequence lock (docs/protocols.md): what an account holds, by kind, in one piece.
 *
 * Two threads of one process write the account, with a mutex of that process; a reader reads it, the process may die at any
 * step, and the slot's next owner enters the account before its first change there. A writer that is preempted or stopped for
 * ever is one that is not scheduled, or is killed.
 *
 * With FALSE_DEATH the first process does not die: others take it for dead, the slot becomes the next owner's, and the first
 * goes on to write what it was about to write. One thread each; nobody reads. When both are quiet, the next owner makes one
 * more change, and then the account is as that one says.
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
#define has(g) true
#else
#define has(g) (owner == (g))
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
byte over;			/* threads that are over */

/* Nor these: each process's mutex for the account; under it, whether the account is its own, and what it holds. */
bool held[2];
bool entered[2];
figures mine[2];

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

inline put(c)
{
#ifdef ONE_KIND
	copy[c].total = mine[g].total;			/* what the change concerns, and no more */
	copy[c].kind[kind] = mine[g].kind[kind]
#else
	copy[c].total = mine[g].total;
	copy[c].kind[0] = mine[g].kind[0];
	copy[c].kind[1] = mine[g].kind[1]
#endif
}

inline publish()		/* all that the process holds, from an idle count, whatever the word says */
{
	t = turn;
#ifndef NO_RESET
	t = (phase(t) == 0 -> t : t - phase(t) + 4);
#endif
	d_step { turn = t + 1; if :: !entering -> begun[g]++ :: else fi }
	put(first);
#ifdef STORES_REORDERED
	copy[A].total = mine[g].total;
#endif
	d_step { turn = t + 3; if :: !entering -> ended[g]++ :: else fi }
	put(A);
	turn = t + 4
}

inline enter()			/* before this owner's first change, or where another wrote its generation over ours */
{
	if
	:: entered[g] && owner == g
	:: else ->
#ifdef GENERATION_FIRST
	   owner = g;
#endif
	   entering = true;
	   publish();
	   entering = false;
	   entered[g] = true;
	   owner = g
	fi
}

proctype thread(bit g; byte kind)
{
	byte t, n, total;
	bool entering;

	{
		do
		:: n < WRITES ->
		   n++;
#ifndef NO_MUTEX
		   atomic { !held[g] -> held[g] = true }
#endif
		   enter();
		   total = mine[g].total + 1;
		   atomic { mine[g].total = total; mine[g].kind[kind]++ }
		   publish();
		   d_step { held[g] = false; t = 0; total = 0 }
		:: else -> break
		od
	} unless { !alive[g] };
	atomic { t = 0; n = 0; total = 0; entering = false; over++ }
}

/* Death, reaping (which leaves the usage alone), and the next owner. Or none of it. */
proctype successor()
{
	if
	:: goto out
#ifdef FALSE_DEATH
	:: true
#else
	:: alive[0] = false; over == 2
#endif
	fi;
	if
	:: goto out
	:: status = STATUS(0, FREE)
	fi;
	atomic { status = STATUS(1, JOINING); tenure = 1 }
	status = STATUS(1, ACTIVE);
#ifdef FALSE_DEATH
	run thread(1, 0);
#else
	atomic { run thread(1, 0); run thread(1, 1) }
#endif
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
	   if :: !has(g) -> d_step { total = 0; bytes[0] = 0; bytes[1] = 0 } break :: else fi;
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
#ifndef FALSE_DEATH
		run thread(0, 0);
#endif
		run thread(0, 1);
		run successor();
		do :: n < READERS -> n++; run reader() :: else -> break od
	}
	_nr_pr == 1;
#ifdef FALSE_DEATH
	if
	:: tenure == 1 ->
	   run thread(1, 0);
	   _nr_pr == 1;
	   assert(owner == 1 && phase(turn) == 0);
	   assert(copy[A].total == 2 * WRITES && copy[A].kind[0] == 2 * WRITES && copy[A].kind[1] == 0);
	   assert(copy[B].total == 2 * WRITES && copy[B].kind[0] == 2 * WRITES && copy[B].kind[1] == 0)
	:: else
	fi
#else
	assert(!alive[0] || copy[A].total == 2 * WRITES)	/* no write was lost between the threads */
#endif
}
