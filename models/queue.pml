/* The queue (docs/protocols.md, *The queue*): commands that wait for room start in the order of their tickets, and never
 * when the device has no room for them.
 *
 * Each of WAITERS takes a ticket, waits until it is the first, waits for room, makes its job and leaves the queue. Its job
 * ends later. The process may be killed at any step: the kernel drops its locks then, and its job has ended.
 *
 * With PASSER a user asks the keeper of a policy for a job and does not wait (internal/policy/PROTOCOL.md, *Waiting*):
 * the request is refused while a ticket is held. The keeper looks for room and makes a job under a lock, also for waiters.
 */

#ifndef WAITERS
#define WAITERS 3
#endif
#ifndef ROOM
#define ROOM 2				/* of the device */
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#define NONE 255
#define SIZE(n) (1 + (n) % 2)		/* the odd ones want more */

byte mutex = NONE;			/* the process that has the mutex's byte locked */
byte next;				/* in the file: the number of the next ticket */
bool held[WAITERS + 1];			/* the byte of that ticket is locked */
bool job[WAITERS];			/* its job counts: its region is there, and a process has `alive` locked */
byte ended;				/* jobs that have ended; not in the files */
bool passed;				/* the job of the user that does not wait, which is of size 1 */

byte deaths = DEATHS;
bool over[WAITERS + 1];			/* not in the files: that ticket has started, or its process is dead */
bool waits[WAITERS];			/* not in the files: that process has a ticket, and has not started */
byte used, i;

#define OR_DIE :: atomic { deaths > 0 -> deaths--; goto killed }

inline total()
{
	used = passed;
	i = 0;
	do
	:: i < WAITERS -> used = used + (job[i] -> SIZE(i) : 0); i++
	:: else -> break
	od
}

#define ROOM_FOR(size) (passed + job[0] * SIZE(0) + job[1] * SIZE(1) + job[2] * SIZE(2) + (size) <= ROOM)

/* start: no earlier one is left, and there is room */
inline start()
{
	n = 0;
	do
	:: n < ticket -> assert(over[n]); n++
	:: else -> break
	od;
	job[me] = true;
	total();
	assert(used <= ROOM);
	over[ticket] = true;
	waits[me] = false
}

/* A user that does not wait. */
proctype passer()
{
	bool earlier[WAITERS];
	byte n;

	atomic {			/* it asks: those that have a ticket now come first */
		do
		:: n < WAITERS -> earlier[n] = waits[n]; n++
		:: else -> break
		od
	};
#ifndef NO_TURN
	if
	:: held[0] || held[1] || held[2] -> goto refused
	:: else
	fi;
#endif
#ifdef NO_LOCK
	if
	:: ROOM_FOR(1)
	:: else -> goto refused
	fi;
#endif
	atomic {
#ifndef NO_LOCK
		if
		:: ROOM_FOR(1)
		:: else -> goto refused
		fi;
#endif
		n = 0;
		do
		:: n < WAITERS -> assert(!earlier[n] || !waits[n]); n++
		:: else -> break
		od;
		passed = true;
		total();
		assert(used <= ROOM)
	};
	passed = false;
refused:
	skip
}

proctype waiter(byte me)
{
	byte ticket = NONE, seen;
	bool saw[WAITERS];
	byte n, sum;

	/* take a ticket */
#ifndef NO_MUTEX
	if
	:: atomic { mutex == NONE -> mutex = me }
	OR_DIE
	fi;
#endif
	if :: n = next OR_DIE fi;
#ifdef NUMBER_FIRST
	if :: next = n + 1 OR_DIE fi;
	mutex = NONE;
	if :: atomic { held[n] = true; over[n] = false; waits[me] = true; ticket = n } OR_DIE fi;
#else
	if :: atomic { assert(!held[n]); held[n] = true; over[n] = false; waits[me] = true; ticket = n } OR_DIE fi;
	if :: next = n + 1 OR_DIE fi;
#ifndef NO_MUTEX
	mutex = NONE;
#endif
#endif
	/* wait for the first place: a lock of all bytes below, waited for by the kernel */
	n = 0;
	if
	:: atomic {
#ifdef NO_ORDER
		true
#else
		(ticket == 0 || !held[0]) && (ticket < 2 || !held[1]) && (ticket < 3 || !held[2])
#endif
	   }
	OR_DIE
	fi;
#ifdef PASSER
	/* wait for room: the keeper looks under its lock, and makes the job */
	if
	:: atomic { ROOM_FOR(SIZE(me)) -> start() }
	OR_DIE
	fi;
#else
	/* wait for room */
	do
	:: n = 0;			/* read all jobs, one after the other: one that has been read may end meanwhile */
	   sum = 0;
	   do
	   :: n < WAITERS -> atomic { saw[n] = job[n]; sum = sum + (job[n] -> SIZE(n) : 0); n++ }
	   :: else -> break
	   od;
	   if
	   :: sum + SIZE(me) <= ROOM -> break
	   :: else
	   fi;
#ifdef EDGE				/* tells of ends from now on only */
	   seen = ended;
	   if
	   :: ended != seen
	   OR_DIE
	   fi
#else					/* waits for the locks of the jobs that it saw: one that has ended already is found */
	   if
	   :: saw[0] && !job[0]
	   :: saw[1] && !job[1]
#if WAITERS > 2
	   :: saw[2] && !job[2]
#endif
#if WAITERS > 3
	   :: saw[3] && !job[3]
#endif
	   OR_DIE
	   fi
#endif
	OR_DIE
	od;
#ifdef LEAVE_FIRST
	atomic { held[ticket] = false };
	if :: skip OR_DIE fi;
#endif
	atomic { start() };
#endif
	atomic { held[ticket] = false };
	/* the command ends, by itself or killed */
	atomic { job[me] = false; ended++ };
	goto done;
killed:
	/* the kernel drops the locks, in one step: they are of one open file */
	atomic {
		if :: mutex == me -> mutex = NONE :: else fi;
		if :: ticket != NONE -> held[ticket] = false; over[ticket] = true; waits[me] = false :: else fi
	};
done:
	skip
}

init {
	atomic {
		byte w = 0;
		do
		:: w < WAITERS -> run waiter(w); w++
		:: else -> break
		od;
#ifdef PASSER
		run passer()
#endif
	}
}
