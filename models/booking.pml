/* Claims that are prepared at the same time on a node (kube/node/PROTOCOL.md, Booking).
 *
 * The device has CAPACITY, and each of CLAIMS claims wants one of it. For each claim a caller prepares and unprepares it, ROUNDS
 * times. It dies up to DEATHS times before any write; the kernel then drops its locks, and the call is made again, or the claim is
 * unprepared. A call for one claim holds that claim's lock, so that one caller for each claim stands for all calls. The lock of the
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

bool record[CLAIMS];		/* on disk */
bool job[CLAIMS];
bool booking;			/* the lock */
byte jobs;			/* how many jobs there are */
byte deaths;

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
	   sum = 1; i = 0;
	   do			/* the records of the others, one after the other */
	   :: i < CLAIMS ->
	      if
	      :: i != own && record[i] -> sum++
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
	   STEP(record[own] = true);
#else
	   STEP(record[own] = true);
	   atomic { if :: booked -> booking = false; booked = false :: else fi };
#endif
	   STEP(if :: !job[own] -> job[own] = true; jobs++ :: else fi; assert(jobs <= CAPACITY));
unprepare:
#ifdef FORGET_FIRST
	   STEP(record[own] = false);
#endif
	   STEP(if :: job[own] -> job[own] = false; jobs-- :: else fi);
#ifndef FORGET_FIRST
	   STEP(record[own] = false);
#endif
	   goto next;
dead:
	   atomic { if :: booked -> booking = false; booked = false :: else fi };
	   if
	   :: goto again
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
