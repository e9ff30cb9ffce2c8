/* The gate of a job that sleeps (shim/PROTOCOLS.md, *The gate*): threads that call the driver, and a process that puts the
 * job to sleep and wakes it.
 *
 * THREADS make CALLS calls each. Some calls make what cannot sleep, and undo it. A process puts the job to sleep, and may
 * die before any step; another then does what is left of it. It wakes the job if a call wants it. The driver makes calls
 * wait from its lock on, and waits for those under way.
 *
 * After `falling` the process waits until no thread that has passed the gate before is still on its way to the driver. A
 * thread that has passed since then may be on its way. One that waits on its way (for a cap) is not waited for, and
 * looks again afterwards.
 */

#ifndef THREADS
#define THREADS 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef SLEEPS
#define SLEEPS 2
#endif

#define AWAKE 0
#define FALLING 1
#define ASLEEP 2

#define NEW 1
#define OLD 2

byte sleep;			/* the region's word */
bool wanted;			/* the region's word: a call has asked since the job fell asleep */
byte passed[THREADS];		/* not in the file: threads that go from the gate to the driver; OLD: since before falling */
byte cannot;			/* things that cannot sleep, as the slot shows them */

bool locked;			/* the driver makes calls wait */
byte inside;			/* calls in the driver */
bool aside;			/* the driver has put the memory aside */
byte unable;			/* what the driver has that cannot sleep */

byte threads = THREADS;		/* that still run */

proctype caller(byte me)
{
	byte calls;
	bool special, waits;
	do
	:: calls == CALLS -> break
	:: else ->
		calls++;
		if
		:: special = true; waits = true
		:: special = false; waits = true
		:: special = false; waits = false
		fi;
		if :: special -> cannot++ :: else fi;
		if
		:: atomic { sleep == AWAKE -> passed[me] = NEW }
		:: atomic { sleep != AWAKE && !waits -> passed[me] = NEW };
			wanted = true			/* and goes on into the driver */
		:: sleep != AWAKE && waits ->
			wanted = true;
			do				/* it asks again at each change */
			:: atomic { sleep == AWAKE -> passed[me] = NEW; break }
#ifndef ASK_ONCE
			:: atomic { sleep != AWAKE && !wanted -> wanted = true }
#endif
			od
		fi;
		if
		:: !special ->
			passed[me] = 0;			/* waits, for a cap */
#ifndef LOOK_ONCE
			if
			:: atomic { sleep == AWAKE -> passed[me] = NEW }
			:: atomic { sleep != AWAKE -> passed[me] = NEW };
				wanted = true
			fi
#endif
		:: true
		fi;
		atomic { !locked -> inside++; passed[me] = 0 };
		if :: special -> unable++ :: else fi;
		inside--;
		if
		:: special ->
#ifdef CLEAR_FIRST
			cannot--;
			atomic { !locked -> inside++ };
			unable--;
			inside--
#else
			atomic { !locked -> inside++ };
			unable--;
			inside--;
			cannot--
#endif
		:: else
		fi
	od;
	threads--
}

inline fall()
{
	atomic {
		sleep = FALLING;
		i = 0;
		do
		:: i == THREADS -> break
		:: else -> if :: passed[i] == NEW -> passed[i] = OLD :: else fi; i++
		od;
		i = 0
	}
}

/* The kernel has told that each thread waits, or has had a processor for a while. */
inline arrived()
{
	do
	:: i == THREADS -> break
	:: else -> passed[i] != OLD; i++
	od;
	i = 0
}

/* What is left of a sleep is undone, or done: the driver knows how far it went. */
inline undo()
{
	locked = false;
	sleep = AWAKE
}

inline wake()
{
	aside = false;
	locked = false;
	sleep = AWAKE
}

#define OR_DIE :: goto died

active proctype sleeper()
{
	byte sleeps, i;
	do
	:: sleeps == SLEEPS -> break
	:: threads == 0 -> break
	:: else ->
		sleeps++;
		wanted = false;
#ifdef CHECK_FIRST
		if :: cannot > 0 -> goto next :: else fi;
#endif
		fall();
		if :: true OR_DIE fi;
#ifndef NO_GRACE
		arrived();
#endif
		if :: true OR_DIE fi;
		locked = true;
		inside == 0;
		if :: true OR_DIE fi;
#ifndef CHECK_FIRST
		if :: cannot > 0 -> undo(); goto next :: else fi;
#endif
		assert(unable == 0);	/* the driver puts nothing aside that it cannot bring back */
		aside = true;
		if :: true OR_DIE fi;
		sleep = ASLEEP;
		if :: true OR_DIE fi;
		goto sleeps_now;
died:		/* the next process asks the driver */
		if
		:: aside -> sleep = ASLEEP
		:: else -> undo(); goto next
		fi;
sleeps_now:
		/* A job that no call wants sleeps on. A call that waits in the driver has asked. */
		if
		:: wanted -> wake()
		:: threads == 0 -> wake()
		fi;
next:		skip
	od
}

init {
	byte i;
	atomic {
		do
		:: i == THREADS -> break
		:: else -> run caller(i); i++
		od
	}
}
