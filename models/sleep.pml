/* A job that sleeps (internal/sleep/PROTOCOL.md): its device memory is put aside by the driver and brought back, by helpers
 * that may be killed at any step; a call to the driver that one of them has begun goes on inside the sleeper. No process is
 * brought back into a device without room, none is left locked, and the books agree.
 *
 * SLEEPERS processes of the job hold one unit each. Another job of one unit starts when there is room: the device's, less the
 * limits of jobs that are not asleep. Helpers put the job to sleep and wake it, in any order; the last one wakes it, and
 * is not killed.
 */

#ifndef SLEEPERS
#define SLEEPERS 2
#endif
#ifndef HELPERS
#define HELPERS 2			/* that may be killed */
#endif
#ifndef DEATHS
#define DEATHS 2			/* of helpers */
#endif
#ifndef ENDS
#define ENDS 0				/* of sleepers */
#endif
#define NONE 255

mtype = { awake, falling, asleep, waking, restoring };	/* the job's word */
mtype = { running, locked, aside, gone };		/* a process in the driver */
mtype = { nothing, lock, checkpoint, restore, unlock };	/* a call in the driver */

mtype word = awake;
byte sleepLock = NONE, first = NONE;	/* whose the sleep lock is, and the first place in the queue */
mtype driver[SLEEPERS] = running;
mtype call[SLEEPERS] = nothing;		/* under way inside the sleeper */
bool used[SLEEPERS] = true;		/* the ledger has it */
byte turns[SLEEPERS];
bool changing[SLEEPERS];		/* not in the file: an owner is changing its account */
bool other, otherHas;			/* the other job runs, and has its unit */
byte deaths = DEATHS, ends = ENDS, left;

/* Units of the device that are taken. */
byte taken = SLEEPERS;

#define DEVICE SLEEPERS
#define ROOM_WITHOUT (word == asleep)
#define DIE :: atomic { deaths > 0 && me < HELPERS -> deaths--; goto killed }

/* The driver's part inside a sleeper. */
proctype service(byte p)
{
end:	do
	:: atomic { call[p] == lock -> if :: driver[p] == running -> driver[p] = locked :: else fi; call[p] = nothing }
	:: atomic { call[p] == unlock -> if :: driver[p] == locked -> driver[p] = running :: else fi; call[p] = nothing }
	:: atomic { call[p] == checkpoint -> if :: driver[p] == locked -> driver[p] = aside; taken-- :: else fi; call[p] = nothing }
	:: atomic { call[p] == restore ->
		if
		:: driver[p] == aside -> assert(taken < DEVICE) /* or the process is lost */; driver[p] = locked; taken++
		:: else
		fi;
		call[p] = nothing
	   }
	:: atomic { ends > 0 && driver[p] != gone && !changing[p] ->	/* killed: the kernel and a reaper clean up */
		ends--;
		if :: driver[p] != aside -> taken-- :: else fi;
		driver[p] = gone; used[p] = false; turns[p] = 0; call[p] = nothing
	   }
	od
}

/* A thread of a sleeper that changes its account. */
proctype owner(byte p)
{
end:	do
	:: left > 0 && driver[p] != gone ->
#ifdef LOOK_FIRST
		word == awake;
		atomic { if :: driver[p] != gone -> turns[p]++ :: else -> goto again fi };
#else
		atomic { if :: driver[p] != gone -> turns[p]++ :: else -> goto again fi };
		if
		:: word != awake -> atomic { if :: turns[p] > 0 -> turns[p]-- :: else fi }; goto again
		:: else
		fi;
#endif
		atomic { if :: driver[p] != gone -> changing[p] = true; assert(used[p]) :: else fi };
		atomic { changing[p] = false; if :: turns[p] > 0 -> turns[p]-- :: else fi };
again:		skip
	:: left == 0 || driver[p] == gone -> break
	od
}

/* Another job, which waits for room. */
proctype newcomer()
{
	do
	:: atomic { first == NONE -> first = HELPERS + 1 };
	   if
	   :: atomic { ROOM_WITHOUT -> other = true; first = NONE };
	      atomic { taken < DEVICE -> taken++; otherHas = true };
	      atomic { taken--; otherHas = false };
	      other = false
	   :: else -> first = NONE
	   fi
	:: left == 0 -> break
	od
}

/* Asks the driver for a call, and waits for its end. Another call may be under way: then it is refused. */
#define ASK(p, what) \
	if \
	:: atomic { call[p] == nothing && driver[p] != gone -> call[p] = what }; \
	   if :: call[p] == nothing DIE fi \
	:: call[p] != nothing || driver[p] == gone \
	DIE \
	fi

proctype helper(byte me)
{
	byte p;
	bool all, sure, turn;

	/* the sleep lock; the last helper wakes the job when all others have ended */
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
	:: word == waking || word == restoring -> goto done
	fi;
	if :: word = falling DIE fi;
	p = 0;
	do
	:: p < SLEEPERS ->
#ifndef NO_TURNS
		if :: turns[p] == 0 || driver[p] == gone DIE fi;
#endif
		p++
	:: else -> break
	od;
#ifdef RETURN_EARLY
	word = asleep;
#endif
	p = 0;
	do
	:: p < SLEEPERS -> ASK(p, lock); p++
	:: else -> break
	od;
	p = 0;
	do
	:: p < SLEEPERS ->
		if
		:: ASK(p, checkpoint)
		:: goto back			/* the driver cannot, or a check fails */
		fi;
		p++
	:: else -> break
	od;

fallen:	/* all are aside, or the way is back */
	p = 0; all = true;
	do
	:: p < SLEEPERS -> if :: driver[p] != aside && driver[p] != gone -> all = false :: else fi; p++
	:: else -> break
	od;
	if :: all :: !all -> goto back DIE fi;
	if :: word = asleep DIE fi;
settle:	p = 0;
	do
	:: p < SLEEPERS -> if :: atomic { assert(!changing[p]); used[p] = false }; p++ DIE fi
	:: else -> break
	od;
	goto done;

wake:	/* a job that sleeps needs the first place in the queue, and room, by the limits; whether it sleeps, the lock's holder knows */
#ifdef NO_ROOM
	turn = true;
#endif
#ifdef TURN_BY_LOOK
	turn = word == falling || word == restoring;
#endif
inturn:	if :: atomic { sleepLock == NONE -> sleepLock = me } DIE fi;
	if
	:: word == awake -> goto done
	:: word == falling || word == restoring -> goto back
	:: (word == asleep || word == waking) && !turn ->
		sleepLock = NONE;
		if :: atomic { first == NONE -> first = me } DIE fi;
		if :: !other || word != asleep DIE fi;
		turn = true;
		goto inturn
	:: word == asleep && turn -> if :: word = waking DIE fi
	:: word == waking && turn
	fi;
	/* charge all; none is asked from the driver before */
	p = 0;
	do
	:: p < SLEEPERS -> if :: atomic { if :: driver[p] != gone -> assert(!changing[p]); used[p] = true :: else fi }; p++ DIE fi
	:: else -> break
	od;
#ifdef NO_RESTORING
	p = 0; all = true;
	do				/* an earlier helper has brought none back, as it seems */
	:: p < SLEEPERS -> if :: driver[p] != aside && driver[p] != gone -> all = false :: else fi; p++
	:: else -> break
	od;
#else
	all = true;
#endif
	if				/* the driver's own count has no room, or a limit was lowered: put off */
	:: all && me < HELPERS -> p = 0;
	   do
	   :: p < SLEEPERS -> if :: used[p] = false; p++ DIE fi
	   :: else -> break
	   od;
	   if :: word = asleep DIE fi;
	   goto done
	:: skip
	fi;

back:	/* the driver brings all back; each is still charged, or charged again. From here on there is no other way: a restore
	   may be under way after its helper was killed */
#ifndef NO_RESTORING
	if :: word = restoring DIE fi;
#endif
	p = 0; sure = false;
	do
	:: p == SLEEPERS -> break
	:: p < SLEEPERS && driver[p] == gone -> p++; sure = false
	:: p < SLEEPERS && driver[p] == aside -> ASK(p, restore)
	:: p < SLEEPERS && driver[p] == locked -> ASK(p, unlock)
	:: p < SLEEPERS && driver[p] == running ->
#ifndef NO_PROOF
		if			/* a call of a killed helper may be under way: one that ends after it proves that it is not */
		:: !sure ->
		   if
		   :: atomic { call[p] == nothing && driver[p] != gone -> call[p] = lock };
		      if :: call[p] == nothing DIE fi;
		      sure = true
		   :: call[p] != nothing || driver[p] == gone
		   DIE
		   fi
		:: sure -> p++; sure = false
		fi
#else
		p++
#endif
	od;
	if
	:: atomic {
		word = awake;
		p = 0;
		do
		:: p < SLEEPERS ->
			assert(driver[p] == gone || driver[p] == running && call[p] == nothing);	/* none is left locked */
			assert(driver[p] == gone || used[p]);						/* or counted by none */
			p++
		:: else -> break
		od
	   }
	DIE
	fi;
done:
killed:	/* the kernel drops the locks */
	atomic {
		if :: sleepLock == me -> sleepLock = NONE :: else fi;
		if :: first == me -> first = NONE :: else fi;
		left--;
		if
		:: me == HELPERS -> assert(word == awake)
		:: else
		fi
	}
}

init {
	atomic {
		byte n = 0;
		left = HELPERS + 1;
		do
		:: n < SLEEPERS -> run service(n); run owner(n); n++
		:: else -> break
		od;
		run newcomer();
		n = 0;
		do
		:: n <= HELPERS -> run helper(n); n++
		:: else -> break
		od
	}
}
