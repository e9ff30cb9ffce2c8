/* The end of a destroyed pool (shim/PROTOCOLS.md, *A pool's charge*): the driver tells nothing of what is left of it. Its charge goes when all
 * addresses have been freed and a thread has waited since.
 *
 * FREERS free an address each on a stream, which takes effect when a thread next waits. One thread destroys the pool. WAITERS wait for
 * the device, twice each, and then settle the pool. What the driver has of it is always charged; when all is quiet and a thread has waited
 * once more, the charge is gone. */

#ifndef FREERS
#define FREERS 2
#endif
#ifndef WAITERS
#define WAITERS 2
#endif

byte live = FREERS;	/* addresses that the driver has not been asked to free */
byte pending;		/* freed on a stream that no thread has waited for since */
byte promised = FREERS;	/* addresses that the library counts as live */
byte stamp, freed_at;
bool ending;		/* frees have stamps from now on */
bool destroyed;		/* waits may settle it */
bool charged = true;
byte running;

inline check() { assert(charged || live + pending == 0) }

/* The latest of several threads' stays. */
inline set_stamp()
{
	d_step { stamp++; now = stamp };
#ifdef LAST_STAMP
	freed_at = now
#else
	d_step { if :: freed_at < now -> freed_at = now :: else fi }
#endif
}

inline settle()
{
	if
	:: destroyed && promised == 0 ->
#ifdef NO_STAMP
		d_step { charged = false; check() }
#else
		if
		:: freed_at <= since -> d_step { charged = false; check() }
		:: else
		fi
#endif
	:: else
	fi
}

proctype freer()
{
	byte now;
	bool seen;
#ifdef STAMP_EARLY
	seen = ending;
	if :: seen -> set_stamp() :: else fi;
#endif
	d_step { live--; pending++ };
#if !defined(STAMP_EARLY) && !defined(STAMP_LATE)
	seen = ending;
	if :: seen -> set_stamp() :: else fi;
#endif
	promised--;
#ifdef STAMP_LATE
	seen = ending;
	if :: seen -> set_stamp() :: else fi;
#endif
	running--
}

proctype destroyer()
{
	byte now;
#ifdef ONE_STEP
	set_stamp();
	d_step { ending = true; destroyed = true };
#else
	ending = true;
#ifndef DESTROYED_UNSTAMPED
	set_stamp();
#endif
	destroyed = true;
#endif
	running--
}

proctype waiter()
{
	byte since, n = 0;
	do
	:: n < 2 ->
		n++;
		since = stamp;
		pending = 0;
		settle()
	:: else -> break
	od;
	running--
}

init {
	byte since, n;
	atomic {
		running = FREERS + WAITERS + 1;
		n = 0;
		do :: n < FREERS -> run freer(); n++ :: else -> break od
		n = 0;
		do :: n < WAITERS -> run waiter(); n++ :: else -> break od
		run destroyer()
	}
	running == 0;
	atomic {
		since = stamp;
		pending = 0;
		settle();
		assert(!charged)
	}
}
