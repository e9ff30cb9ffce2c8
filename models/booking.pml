/* Claims that are prepared at the same time on a node (kube/node/PROTOCOL.md, Booking).
 *
 * The device has CAPACITY, and each of CLAIMS claims wants one of it. For each claim a caller prepares and unprepares it, ROUNDS
 * times. It dies up to DEATHS times before any write; the kernel then drops its locks, and the call is made again, or the claim is
 * unprepared. With RESIZES, a claim that is prepared is raised to two of the device and lowered again up to RESIZES times (Resize). A
 * call for one claim holds that claim's lock, so that one caller for each claim stands for all calls. The lock of the
 * booking excludes all callers from each other.
 */

#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef CAPACITY
#define CAPACITY 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif

#ifndef RESIZES
#define RESIZES 0
#endif

byte record[CLAIMS];		/* on disk: how much is booked for the claim */
byte job[CLAIMS];		/* the limit of its job */
bool booking;			/* the lock */
byte jobs;			/* the sum of the limits */
byte deaths, resizes;

#define LIMIT(n) jobs = jobs - job[own] + n; job[own] = n

/* A step of a call. The caller dies instead. */
#define STEP(what) if :: atomic { what } :: atomic { deaths < DEATHS -> deaths++; goto dead } fi

proctype caller(byte own)
{
	byte round, i, sum;
	bool booked;		/* this caller has the lock of the booking */

	do
	:: round < ROUNDS ->
	   round++;
again:
#ifndef NO_BOOKING_LOCK
	   atomic { !booking -> booking = true; booked = true };
#endif
	   sum = (record[own] > 0 -> record[own] : 1); i = 0;
	   do			/* the records of the others, one after the other */
	   :: i < CLAIMS ->
	      if
	      :: i != own -> sum = sum + record[i]
	      :: else
	      fi;
	      i++
	   :: else -> break
	   od;
	   if
	   :: sum > CAPACITY ->	/* overbooked: the kubelet ends the pod */
	      atomic { if :: booked -> booking = false; booked = false :: else fi };
	      goto unprepare
	   :: else
	   fi;
#ifdef RECORD_AFTER
	   atomic { if :: booked -> booking = false; booked = false :: else fi };
	   STEP(if :: record[own] == 0 -> record[own] = 1 :: else fi);
#else
	   STEP(if :: record[own] == 0 -> record[own] = 1 :: else fi);
	   atomic { if :: booked -> booking = false; booked = false :: else fi };
#endif
	   STEP(if :: job[own] == 0 -> LIMIT(1) :: else fi; assert(jobs <= CAPACITY));
resize:
	   if
	   :: atomic { resizes < RESIZES -> resizes++ }
	   :: goto unprepare
	   fi;
	   if
	   :: record[own] == 1 ->	/* raise: book it first */
	      atomic { !booking -> booking = true; booked = true };
	      sum = 2; i = 0;
	      do
	      :: i < CLAIMS ->
		 if
		 :: i != own -> sum = sum + record[i]
		 :: else
		 fi;
		 i++
	      :: else -> break
	      od;
	      if
	      :: sum > CAPACITY ->
		 atomic { booking = false; booked = false };
		 goto unprepare
	      :: else
	      fi;
#ifdef RAISE_FIRST
	      STEP(LIMIT(2); assert(jobs <= CAPACITY));
	      atomic { booking = false; booked = false };
	      STEP(record[own] = 2)
#else
	      STEP(record[own] = 2);
	      atomic { booking = false; booked = false };
	      STEP(LIMIT(2); assert(jobs <= CAPACITY))
#endif
	   :: else ->			/* lower: end the booking last */
#ifdef LOWER_BOOKING_FIRST
	      STEP(record[own] = 1);
	      STEP(LIMIT(1))
#else
	      STEP(LIMIT(1));
	      STEP(record[own] = 1)
#endif
	   fi;
	   goto resize;
unprepare:
#ifdef FORGET_FIRST
	   STEP(record[own] = 0);
#endif
	   STEP(LIMIT(0));
#ifndef FORGET_FIRST
	   STEP(record[own] = 0);
#endif
	   goto next;
dead:
	   atomic { if :: booked -> booking = false; booked = false :: else fi };
	   if
	   :: goto again
	   :: record[own] > 0 && job[own] > 0 -> goto resize
	   :: goto unprepare
	   fi;
next:
	   skip
	:: else -> break
	od
}

init {
	byte i;

	atomic {
		do
		:: i < CLAIMS -> run caller(i); i++
		:: else -> break
		od
	};
	(_nr_pr == 1);
	assert(jobs == 0 && !booking)
}
