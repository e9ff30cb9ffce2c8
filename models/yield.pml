/* Jobs that sleep for those that wait (docs/protocols.md, *The queue*): the first in the queue puts jobs to sleep that are
 * not used, if that makes room for it.
 *
 * JOBS jobs fill the device. Each of NEWCOMERS takes a ticket, waits for the first place and for room, and runs for a
 * while; it may be killed, or leave the queue. A program of each job makes CALLS calls. A call of a job that sleeps waits
 * until the job is awake, for which the job's waiter takes a ticket. A job that sleeps may end, and then its waiter needs
 * no room any more: from its next look on no job falls asleep for it. Each job needs a room of 1. How a ticket is taken
 * is in queue.pml, and how a job falls asleep in sleep.pml.
 */

#ifndef JOBS
#define JOBS 2
#endif
#ifndef NEWCOMERS
#define NEWCOMERS 2
#endif
#ifndef CALLS
#define CALLS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef SELF
#define SELF 0				/* how often a job sleeps because its own time is over */
#endif
#ifndef ENDS
#define ENDS 0				/* how many jobs that sleep end */
#endif
#define TICKETS (NEWCOMERS + JOBS * (CALLS + DEATHS + 1))
#define NONE 255

mtype = { AWAKE, FALLING, ASLEEP, GONE };

#define HOLDS_ROOM(j) (state[j] == AWAKE || state[j] == FALLING)

mtype state[JOBS] = AWAKE;
byte count[JOBS];			/* how often it began to fall asleep */
byte wanted[JOBS];			/* calls that want it awake */
byte slept_at[JOBS];			/* wanted, before it fell asleep */
bool locked[JOBS];			/* the sleep lock */
bool calls[JOBS];			/* its program is in a call */
bool rest[JOBS];			/* the file `rest`: it is not used, and */
byte rest_count[JOBS];			/* the count of then */

bool held[TICKETS];
byte next;
bool runs[NEWCOMERS];			/* the job of a newcomer counts */
byte ended;				/* such jobs that have ended */
byte pending = NONE;			/* SLEEP_LATER: a job that another process is to put to sleep */

byte deaths = DEATHS, self = SELF, ends = ENDS;
bool looked[JOBS];			/* not in the files: since it is awake, the job was found unused */
bool called;				/* not in the files: a program has made a call, a process was killed, a job slept by itself */

#define OR_DIE :: atomic { deaths > 0 -> deaths--; called = true; goto killed }

/* The machine, as the process reads it: one job after the other. */
inline look()
{
	n = 0;
	taken = 0;
	unused = 0;
	first = NONE;
	do
	:: n < JOBS ->
	   atomic {
		taken = taken + (HOLDS_ROOM(n) -> 1 : 0);
		if
		:: state[n] == AWAKE && rest[n] && rest_count[n] == count[n] ->
		   unused++;
		   if :: first == NONE -> first = n; seen = count[n] :: else fi
		:: else
		fi;
		n++
	   }
	:: n >= JOBS && n < JOBS + NEWCOMERS -> taken = taken + (runs[n - JOBS] -> 1 : 0); n++
	:: else -> break
	od
}

/* put_to_sleep puts job j to sleep, unless it is used. */
inline put_to_sleep(j)
{
	if :: atomic { !locked[j] -> locked[j] = true; mine = j } OR_DIE fi;
	if
#ifdef NO_COUNT
	:: state[j] == AWAKE ->
#else
	:: state[j] == AWAKE && count[j] == seen ->
#endif
	   atomic {
		assert(looked[j]);
		assert(needed);
		slept_at[j] = wanted[j];
		count[j] = count[j] + 1;
		state[j] = FALLING
	   };
	   if
	   :: wanted[j] != slept_at[j] -> atomic { state[j] = AWAKE; looked[j] = false }
	   :: wanted[j] == slept_at[j] ->
	      atomic {
		assert(ticket == NONE || held[ticket]);	/* a process that waits for it */
		state[j] = ASLEEP
	      }
	   OR_DIE
	   fi
	:: else
	fi;
	atomic { locked[j] = false; mine = NONE }
}

/* until_room returns when this process is the first in the queue, and there is room, or goes to nothing if it does not
 * need room any more. */
inline until_room(need)
{
	atomic { held[next] = true; ticket = next; next++ };
	n = 0;
	do
	:: n < ticket ->
	   if
	   :: !held[n] -> n++
#ifndef NEED_ONCE
	   :: !(need) -> goto nothing
#endif
	   OR_DIE
	   fi
	:: else -> break
	od;
	do
	:: before = ended;
	   needed = need;
#ifndef NEED_ONCE
	   if :: !needed -> goto nothing :: else fi;
#endif
	   look();
	   if
	   :: taken + 1 <= JOBS -> break
	   :: taken + 1 > JOBS && first != NONE && taken + 1 - unused <= JOBS ->
#ifdef SLEEP_LATER			/* the job's own watcher does it, when it notices */
	      if :: atomic { pending == NONE -> pending = first } OR_DIE fi;
	      if :: pending == NONE OR_DIE fi
#else
	      put_to_sleep(first);
#ifdef ALL_UNUSED			/* and one more, without another look */
	      look();
	      if :: first != NONE -> put_to_sleep(first) :: else fi
#endif
#endif
	   :: else ->
#ifdef NO_LOOK				/* waits for the end of a job only */
	      if
	      :: ended != before
#else					/* looks again after a while */
	      if
	      :: (!HOLDS_ROOM(0) || !HOLDS_ROOM(JOBS - 1) || rest[0] || rest[JOBS - 1] || !(need))
#endif
	      OR_DIE
	      fi
	   fi
	od
}

inline check_room()
{
	n = 0;
	taken = 0;
	asleep = 0;
	do
	:: n < JOBS -> taken = taken + (HOLDS_ROOM(n) -> 1 : 0); asleep = asleep + (state[n] == ASLEEP -> 1 : 0); n++
	:: n >= JOBS && n < JOBS + NEWCOMERS -> taken = taken + (runs[n - JOBS] -> 1 : 0); n++
	:: else -> break
	od;
	assert(taken <= JOBS);
	/* Without calls and crashes, only as many sleep as newcomers have needed. */
	assert(called || asleep <= ticket + 1)
}

proctype newcomer(byte me)
{
	byte ticket = NONE, mine = NONE, first, seen, n, taken, unused, asleep, before;
	bool needed;
	until_room(true);
	atomic { runs[me] = true; check_room() };
	held[ticket] = false;
	atomic { runs[me] = false; ended++ };
	goto done;
nothing:
killed:
	atomic {
		if :: ticket != NONE -> held[ticket] = false :: else fi;
		if :: mine != NONE -> locked[mine] = false :: else fi
	};
done:
	skip
}

/* The waiter of a job that sleeps, which is started again if it is killed. */
proctype waiter(byte me)
{
	byte ticket, mine, first, seen, n, taken, unused, asleep, before;
	bool needed;
again:
	ticket = NONE;
	mine = NONE;
end:	state[me] == ASLEEP && wanted[me] != slept_at[me];
	until_room(state[me] == ASLEEP);
	atomic {
		if
		:: state[me] == ASLEEP -> state[me] = AWAKE; looked[me] = false; check_room()
		:: else
		fi
	};
nothing:
	held[ticket] = false;
	goto again;
killed:
	atomic {
		if :: ticket != NONE -> held[ticket] = false :: else fi;
		if :: mine != NONE -> locked[mine] = false :: else fi;
		goto again
	}
}

/* The process that watches a job: it writes whether the job is used, and finishes what a killed process began. */
proctype watcher(byte me)
{
	byte ticket = NONE, mine = NONE, seen, n;
	bool needed = true;
end:	do
	:: atomic {
		state[me] == AWAKE && (rest[me] == calls[me] || rest_count[me] != count[me]) ->
		rest[me] = !calls[me];
		rest_count[me] = count[me];
		looked[me] = looked[me] || !calls[me]
	   }
	:: atomic { state[me] == AWAKE && !calls[me] && rest[me] && !looked[me] -> rest_count[me] = count[me]; looked[me] = true }
	:: atomic { state[me] == FALLING && !locked[me] -> state[me] = AWAKE; looked[me] = false }
	:: atomic { self > 0 && state[me] == AWAKE && looked[me] -> self--; called = true; seen = count[me] };
	   put_to_sleep(me)
#ifdef SLEEP_LATER
	:: pending == me ->
	   atomic {
		seen = count[me];
		n = 0;
		do
		:: n < TICKETS && !held[n] -> n++
		:: else -> break
		od;
		assert(n < TICKETS);		/* somebody waits for it */
		pending = NONE;
		n = 0
	   };
	   put_to_sleep(me)
#endif
	od;
killed:
	skip
}

/* A program of a job. */
proctype program(byte me)
{
	byte n;
	do
	:: n < CALLS ->
	   called = true;
	   calls[me] = true;
	   if
	   :: state[me] == AWAKE
	   :: state[me] != AWAKE -> wanted[me] = wanted[me] + 1; (state[me] == AWAKE || state[me] == GONE)
	   fi;
	   calls[me] = false;
	   n++
	:: else -> break
	od
}

/* Ends jobs that sleep: their processes are killed. */
proctype ender()
{
end:	do
	:: atomic { ends > 0 && state[0] == ASLEEP -> ends--; called = true; state[0] = GONE }
	:: atomic { ends > 0 && state[JOBS - 1] == ASLEEP -> ends--; called = true; state[JOBS - 1] = GONE }
	od
}

init {
	atomic {
		byte j = 0;
		run ender();
		do
		:: j < JOBS -> run watcher(j); run waiter(j); run program(j); j++
		:: else -> break
		od;
		j = 0;
		do
		:: j < NEWCOMERS -> run newcomer(j); j++
		:: else -> break
		od
	}
}
