/* Claims that are prepared at the same time on a node (kube/node/PROTOCOL.md, Booking).
 *
 * The device has CAPACITY, and each of CLAIMS claims wants one of it. For each claim a caller prepares and unprepares it, ROUNDS
 * times. It dies up to DEATHS times before any write; the kernel then drops its locks, and the call is made again, or the claim is
 * unprepared. With RESIZES, a claim that is prepared is raised to two of the device and lowered again up to RESIZES times (Resize). A
 * call for one claim holds that claim's lock, so that one caller for each claim stands for all calls. The lock of the
 * booking excludes all callers from each other.
 *
 * With TOGETHER, callers are of one process, and one that waits for the booking may be booked by the one that has the lock, beside the
 * records that it read and those that it wrote since. If that dies, the kubelet calls again.
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
#ifdef TOGETHER
mtype = { BUSY, WAITS, LED, BOOKED, REFUSED };
mtype state[CLAIMS];		/* of the callers; LED: taken from the queue */
#endif

#define LIMIT(n) jobs = jobs - job[own] + n; job[own] = n

#ifdef READ_ONCE
#define SEE(n)
#else
#define SEE(n) seen[n] = record[n]
#endif

/* A step of a call. The caller dies instead. */
#define STEP(what) if :: atomic { what } :: atomic { deaths < DEATHS -> deaths++; goto dead } fi

proctype caller(byte own)
{
	byte round, i, sum;
	bool booked;		/* this caller has the lock of the booking */
#ifdef TOGETHER
	byte seen[CLAIMS];	/* the records, as this caller read and wrote them */
	byte other = CLAIMS;	/* the claim that it books for another caller */
	bool refused;
#endif

	do
	:: round < ROUNDS ->
	   round++;
again:
#ifdef TOGETHER
	   state[own] = WAITS;
	   if
	   :: atomic { state[own] == WAITS && !booking -> state[own] = BUSY; booking = true; booked = true }
	   :: atomic { state[own] == BOOKED -> state[own] = BUSY }; goto make
	   :: atomic { state[own] == REFUSED -> state[own] = BUSY }; goto unprepare
	   fi;
	   i = 0;
	   do
	   :: i < CLAIMS -> seen[i] = record[i]; i++
	   :: else -> break
	   od;
	   other = own;
	   do			/* its own claim first */
	   :: other < CLAIMS ->
	      d_step {
		 sum = (seen[other] > 0 -> seen[other] : 1); i = 0;
		 do
		 :: i < CLAIMS -> sum = (i != other -> sum + seen[i] : sum); i++
		 :: else -> break
		 od
	      };
	      if
	      :: sum > CAPACITY ->
		 atomic { if :: other == own -> refused = true :: else -> state[other] = REFUSED fi }
	      :: else ->
		 STEP(if :: record[other] == 0 -> record[other] = 1 :: else fi; SEE(other);
		 if :: other != own -> state[other] = BOOKED :: else fi)
	      fi;
	      atomic {		/* the next that waits */
		 other = 0;
		 do
		 :: other < CLAIMS && state[other] != WAITS -> other++
		 :: else -> break
		 od;
		 if :: other < CLAIMS -> state[other] = LED :: else fi
	      }
	   :: else -> break
	   od;
	   atomic {
	      booking = false; booked = false; i = 0;
	      do :: i < CLAIMS -> seen[i] = 0; i++ :: else -> break od;
	      if :: refused -> refused = false; goto unprepare :: else -> goto make fi
	   };
#else
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
#endif
make:
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
#ifdef TOGETHER
	   atomic {
	      if :: other < CLAIMS && other != own && state[other] == LED -> state[other] = WAITS :: else fi;
	      other = CLAIMS; refused = false; i = 0;
	      do :: i < CLAIMS -> seen[i] = 0; i++ :: else -> break od
	   };
#endif
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
