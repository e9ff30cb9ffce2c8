/* The lane of a job that sleeps (internal/sleep/PROTOCOL.md, *The lane*): a thread of the sleeper moves the memory that its
 * library has mapped itself, asked by helpers that may be killed at any step. No call and no work on the device finds the
 * memory gone, what comes back is what was there, and it comes back only when it is charged.
 *
 * THREADS make CALLS calls each; each launches work that changes the memory. Helpers put the job to sleep and wake it; the last
 * one wakes it, and is not killed. A program outside all jobs takes the memory's room whenever it is free.
 */

#ifndef THREADS
#define THREADS 2
#endif
#ifndef CALLS
#define CALLS 1
#endif
#ifndef HELPERS
#define HELPERS 2			/* that may be killed */
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef OUTSIDE
#define OUTSIDE 1			/* how often the program outside takes the room */
#endif
#define NONE 255

mtype = { awake, falling, asleep, restoring };		/* the job's word */
mtype = { in, draining, leaving, out, coming };		/* the lane's word, with number */
mtype = { running, locked, aside };			/* the process in the driver */

mtype word = awake;
mtype lane = in;
byte number;
mtype driver = running;
byte sleepLock = NONE;
bool charged = true;			/* the ledger has the memory */

byte inside;				/* calls that are counted */
byte calling;				/* not in the file: calls and copies inside the driver */
byte work;				/* on the device */
bool mapped = true, taken;		/* the memory is there; the program outside has its room */
byte data, copy;			/* what is in the memory, and in the host's copy */
byte deaths = DEATHS, left, threads = THREADS;

#define DIE :: atomic { deaths > 0 && me < HELPERS -> deaths--; goto killed }

/* A call of the driver waits while the process is locked. */
#define ENTER_DRIVER atomic { driver == running -> calling++ }

proctype caller()
{
	byte calls;
	do
	:: calls == CALLS -> break
	:: else ->
again:
#ifdef LOOK_FIRST
		word == awake;
		inside++;
#else
		inside++;
		if
		:: word == awake
		:: else ->
			inside--;
			word == awake;
			goto again
		fi;
#endif
		if
		:: skip
		:: inside--;		/* it waits for a lock */
returned:		inside++;
#ifndef LOCK_PASSES
			if
			:: word == awake
			:: else ->
				inside--;
				word == awake;
				goto returned
			fi
#endif
		fi;
		ENTER_DRIVER;
		assert(mapped);
		atomic { work++; calling-- };
		inside--;
		calls++
	od;
	threads--
}

proctype device()
{
end:	do
	:: atomic { work > 0 -> assert(mapped); data++; work-- }
	od
}

proctype outsider()
{
	byte n;
end:	do
	:: atomic { n < OUTSIDE && !mapped && !taken -> taken = true }; taken = false; n++
	od
}

/* The lane's thread. */
proctype mover()
{
	byte n;
end:	do
	:: atomic { lane == draining -> n = number };
		if
		:: inside == 0
		:: lane != draining || number != n -> goto next
		fi;
		ENTER_DRIVER;
#ifndef NO_DRAIN
		work == 0;		/* nothing makes this wait shorter */
#endif
		calling--;
		if
#ifdef NO_NUMBER
		:: atomic { lane == draining -> lane = leaving }
#else
		:: atomic { lane == draining && number == n -> lane = leaving }
#endif
		:: else -> goto next
		fi;
		ENTER_DRIVER;
		copy = data;
		calling--;
		if
		:: lane != leaving -> goto next	/* withdrawn: nothing is released */
		:: else
		fi;
		if
		:: ENTER_DRIVER; assert(work == 0); mapped = false; calling--
		:: atomic { lane == leaving -> lane = in }; goto next	/* the copy failed */
		fi;
		if
		:: atomic { lane == leaving -> lane = out }
		:: else
		fi
	:: lane == coming ->
		if
		:: mapped -> lane = in
		:: else ->
			ENTER_DRIVER;
			if
			:: atomic { !taken -> assert(charged); mapped = true };
				data = copy;
				calling--;
				lane = in
			:: atomic { taken -> calling-- };
				lane = out	/* refused: asked again later */
			fi
		fi;
next:		skip
	od
}

proctype helper(byte me)
{
	byte n;
	if
	:: me < HELPERS
	:: me == HELPERS -> left == 1
	fi;
	if
	:: me < HELPERS -> goto sleep
	:: goto wake
	fi;

sleep:	if :: atomic { sleepLock == NONE -> sleepLock = me } DIE fi;
	if
	:: word == awake
	:: word == asleep -> goto settle
	:: word == falling -> goto fallen
	:: word == restoring -> goto done
	fi;
	if :: word = falling DIE fi;
	if :: atomic { assert(lane == in); number++; n = number; lane = draining } DIE fi;
	if
	:: lane != draining
#ifdef STORE_WITHDRAWAL
	:: lane == draining -> lane = in; goto back
#else
	:: atomic { lane == draining -> lane = in }; goto back	/* the work takes too long */
#endif
	DIE
	fi;
	if
	:: lane != leaving
	:: goto back			/* the copy takes too long */
	DIE
	fi;
	if
	:: lane == out
	:: lane == in -> goto back	/* it could not */
	fi;
	if :: atomic { calling == 0 && work == 0 -> driver = locked } DIE fi;
	if
	:: driver = aside
	:: goto back
	DIE
	fi;
fallen:	if
	:: driver == aside && lane == out
	:: else -> goto back
	fi;
	if :: word = asleep DIE fi;
settle:	if :: charged = false DIE fi;
	goto done;

wake:	if :: atomic { sleepLock == NONE -> sleepLock = me } DIE fi;
	if
	:: word == awake -> goto done
	:: word == falling || word == restoring -> goto back
	:: word == asleep
	fi;
#ifndef UNCHARGED
	if :: charged = true DIE fi;
#endif
back:	if :: word = restoring DIE fi;
	if
	:: atomic { lane == draining -> lane = in }
	:: atomic { lane == leaving -> lane = coming }
	:: lane != draining && lane != leaving
	DIE
	fi;
	if				/* it may have begun to leave meanwhile */
	:: atomic { lane == leaving -> lane = coming }
	:: lane != leaving
	DIE
	fi;
	if :: driver = running DIE fi;
	if
	:: atomic { lane == out -> lane = coming }
	:: lane != out
	DIE
	fi;
#ifndef AWAKE_EARLY
	if
	:: lane == in
	:: lane == out ->		/* there is no room */
		if
		:: me == HELPERS -> goto back
		:: me < HELPERS -> goto done
		fi
	DIE
	fi;
#endif
	if :: atomic { word = awake; assert(mapped && driver == running && charged) } DIE fi;
done:
killed:	atomic {
		if :: sleepLock == me -> sleepLock = NONE :: else fi;
		left--;
		assert(me < HELPERS || word == awake)
	}
}

/* What was in the memory is there: each call's work has changed it once. */
active proctype observer()
{
	atomic { threads == 0 && left == 0 && work == 0 && lane == in -> assert(mapped && data == THREADS * CALLS) }
}

init {
	byte n;
	atomic {
		left = HELPERS + 1;
		run device(); run mover(); run outsider();
		do
		:: n < THREADS -> run caller(); n++
		:: else -> break
		od;
		n = 0;
		do
		:: n <= HELPERS -> run helper(n); n++
		:: else -> break
		od
	}
}
