/* Threads of one process of low priority that claim to be busy, give the claim back and set the slice, at
 * the same time: shim/compute/PROTOCOLS.md, *Priority: several threads*.
 *
 * Each thread looks, renews, drops, or leaves, in any order. A lock may fail. A thread may be stopped for
 * ever at any step; then the others do without the mark that it has.
 *
 * Safety: whenever the slice is short, the kernel has the lock. At the end, if no thread was stopped, the
 * lock is there only if the word says so; and if the process has left, there is none. */

#ifndef THREADS
#define THREADS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

bit lock;    /* in the kernel */
bit busy;    /* the word */
bit low = 1; /* there is a claim of low priority */
bit locked, mark, entry, stuck, is_short, left;
byte looks, drops, ended;

#define CHECK assert(!is_short || lock)
#define MAY_STOP if :: goto stopped :: skip fi

#ifdef NO_MARK
#define TAKE got = 1
#define GIVE skip
#else
#define TAKE if :: atomic { !mark -> mark = 1 }; got = 1 :: stuck -> got = 0 fi
#define GIVE mark = 0
#endif

#ifdef HOLD_LEFT
#define MAY_HOLD true
#else
#define MAY_HOLD low
#endif

inline hold()
{
	TAKE;
	if
	:: got ->
		MAY_STOP;
		if
		:: MAY_HOLD ->
			if
			:: lock = 1; MAY_STOP; locked = 1; busy = 1
			:: skip /* it fails */
			fi
		:: else -> skip
		fi;
		GIVE
	:: else -> skip
	fi;
	got = 0
}

inline look_ends()
{
	looks--;
	if
	:: locked && !busy ->
		TAKE;
		if
		:: got ->
			MAY_STOP;
			if
#ifdef NO_LOOKS
			:: !busy ->
#else
			:: !busy && looks == 0 ->
#endif
				atomic { lock = 0; CHECK };
				MAY_STOP;
				locked = 0
			:: else -> skip
			fi;
			GIVE
		:: else -> skip
		fi
	:: else -> skip
	fi;
	got = 0
}

/* A thread that does not get the entry of a context skips it. */
inline look()
{
	looks++;
	do
	:: seen = drops;
		if
		:: !busy -> hold()
		:: skip
		fi;
		want = busy;
		MAY_STOP;
		if
		:: atomic { !entry -> entry = 1 }; atomic { is_short = want; CHECK }; entry = 0
		:: entry -> skip
		fi;
#ifndef NO_AGAIN
		if
		:: seen != drops -> skip
		:: else -> break
		fi
#else
		break
#endif
	od;
	want = 0; seen = 0;
	look_ends()
}

inline drop()
{
#ifdef DROP_NOT_A_LOOK
	atomic { was = busy; busy = 0 };
	if :: was -> drops++; look() :: else -> skip fi;
#else
	looks++;
#ifdef COUNT_FIRST
	drops++;
	atomic { was = busy; busy = 0 };
	if :: was -> look() :: else -> skip fi;
#else
	atomic { was = busy; busy = 0 };
	if :: was -> drops++; look() :: else -> skip fi;
#endif
	look_ends();
#endif
	was = 0
}

inline leave()
{
#ifdef DROP_THEN_LEAVE
	drop();
#endif
	TAKE;
	if :: got -> low = 0; GIVE :: else -> skip fi;
	got = 0;
#ifndef DROP_THEN_LEAVE
	drop();
#endif
	left = 1
}

proctype thread()
{
	byte round, seen;
	bit got, want, was;
	do
	:: round < ROUNDS ->
		round++;
		if
		:: look()
		:: busy -> hold()
		:: drop()
		:: leave()
		fi
	:: else -> break
	od;
	atomic { round = 0; ended++; goto over };
stopped:
	skip;
	d_step { stuck = 1; ended++; round = 0; got = 0; want = 0; was = 0; seen = 0 };
over:
	skip
}

active proctype last()
{
	atomic {
		ended == THREADS;
		assert(stuck || lock == busy);
		assert(stuck || !left || !lock)
	}
}

init {
	atomic {
		run thread();
		run thread();
#if THREADS > 2
		run thread()
#endif
	}
}
