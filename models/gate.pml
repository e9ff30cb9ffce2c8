/* The gate of a job that sleeps (shim/PROTOCOLS.md, *The gate*): threads that call the driver, and a process that puts the
 * job to sleep and wakes it.
 *
 * THREADS make CALLS calls each. Some calls make what cannot sleep, and undo it. A process puts the job to sleep, and may
 * die before any step; another then does what is left of it. It wakes the job if a call wants it. The driver makes calls
 * wait from its lock on, and waits for those under way.
 *
 * `recent` stands for the time of the last use: it is young until the thread that has shown it is in the driver, or waits
 * at the gate. A process that finds it young waits until the threads that have passed the gate are in the driver: that is
 * the assumption about the clock, that none needs a second for that.
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

byte sleep;			/* the region's word */
bool wanted;			/* the region's word: a call has asked since the job fell asleep */
byte recent;			/* threads whose use is young */
byte passing;			/* not in the file: threads that go from the gate to the driver */
byte cannot;			/* things that cannot sleep, as the slot shows them */

bool locked;			/* the driver makes calls wait */
byte inside;			/* calls in the driver */
bool aside;			/* the driver has put the memory aside */
byte unable;			/* what the driver has that cannot sleep */

byte threads = THREADS;		/* that still run */

#define SHOW recent++; shown = true
#define EXPIRE if :: shown -> recent--; shown = false :: else fi

proctype caller(byte me)
{
	byte calls;
	bool special, waits, shown, passed;
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
again:		/* The use, and the reason not to sleep, are shown before the word is read. */
#ifndef USE_LATE
		atomic { SHOW };
#endif
		if
		:: atomic { sleep == AWAKE -> passing++; passed = true }
		:: atomic { sleep != AWAKE && !waits -> passing++; passed = true };
			wanted = true			/* and goes on into the driver */
		:: sleep != AWAKE && waits ->
			wanted = true;
			atomic { EXPIRE };		/* it may wait for hours */
#ifdef SPECIAL_GOES_ON
			if :: special -> goto driver :: else fi;
#endif
			do				/* it asks again at each change */
			:: sleep == AWAKE -> break
#ifndef ASK_ONCE
			:: atomic { sleep != AWAKE && !wanted -> wanted = true }
#endif
			od;
#ifndef WAIT_ONCE
			goto again
#endif
		fi;
#ifdef USE_LATE
		atomic { SHOW };
#endif
driver:
		atomic {
			!locked -> inside++;
			if :: passed -> passing--; passed = false :: else fi;
			EXPIRE
		};
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
	byte sleeps;
	do
	:: sleeps == SLEEPS -> break
	:: threads == 0 -> break
	:: else ->
		sleeps++;
		wanted = false;
#ifdef CHECK_FIRST
		if :: recent > 0 || cannot > 0 -> goto next :: else fi;
		sleep = FALLING;
#else
		sleep = FALLING;
		if :: true OR_DIE fi;
		if :: recent > 0 -> passing == 0 :: else fi;
		if :: cannot > 0 -> undo(); goto next :: else fi;
#endif
		if :: true OR_DIE fi;
		locked = true;
		inside == 0;
		if :: true OR_DIE fi;
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
