/* A claim of Kubernetes on its node (kube/node/PROTOCOL.md).
 *
 * The kubelet prepares a claim, runs a container, and unprepares it, ROUNDS times: the claim is allocated and deallocated in
 * between, and is the same to all who look at its UID. It tries a call again until it has an answer, or forgets the claim, as it does when its
 * pod is deleted by force. The plugin dies up to DEATHS times, before any write, and is started again; it then looks at what is on the
 * node, asks whether the claim is gone, and removes what is. That sweep and the calls hold a lock while they read and write, not while they ask.
 * The sweep of a plugin that has been replaced may go on beside the next one, and SWEEPS more begin at any time, as when there is no room for
 * another claim. A record is lost up to LOSSES times. After a call that failed another pod of the claim may come, and have it prepared.
 */

#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef SWEEPS
#define SWEEPS 0
#endif

/* On disk. */
byte record;			/* 0 none, otherwise a number that no other record ever had */
bool region;			/* the job's region, and limits that are in force */
bool job, spec;			/* what says that the job stands, and the CDI spec */

bool allocated;			/* the claim, as the API server has it */
bool running;			/* a container of it */
bool locked;
byte deaths, losses, sweeps;
byte last;			/* number of a record; in the code it is random */

#ifdef COUNTED			/* how often the claim was prepared */
#define NEXT record = record + 1
#else
#define NEXT last = last + 1; record = last
#endif

#define NOTHING_LEFT (record == 0 && !region && !job && !spec)

/* The kubelet's call, and its answer. */
mtype = { none, prepare, unprepare, answered, failed };
mtype call = none;

/* A step of the process that answers calls. It dies instead, and the kernel drops its lock. */
#define STEP(what) if :: atomic { what } :: atomic { deaths < DEATHS -> deaths++; goto dead } fi

proctype server()
{
	do
	:: atomic { call == prepare && !locked -> locked = true };
#ifndef RECORD_LATE
	   if
	   :: record == 0 -> STEP(NEXT)
	   :: else
	   fi;
#endif
	   if
	   :: !job -> STEP(region = true); STEP(job = true)
	   :: else
	   fi;
#ifdef ANSWER_EARLY
	   atomic { call = answered };
#endif
	   if
	   :: !spec -> STEP(spec = true)
	   :: else
	   fi;
	   STEP(NEXT);
#ifdef ANSWER_EARLY
	   locked = false
#else
	   atomic { locked = false; call = answered }
#endif

	:: atomic { call == unprepare && !locked -> locked = true };
	   if
#ifdef KNOWN_ONLY
	   :: record == 0	/* it is not known */
	   :: else ->
#else
	   :: true ->
#endif
#ifdef FORGET_FIRST
	      STEP(record = 0);
#endif
	      STEP(spec = false);
#ifdef STANDS_LAST
	      STEP(region = false);
#endif
	      STEP(job = false);
#ifndef STANDS_LAST
	      STEP(region = false);
#endif
#ifndef FORGET_FIRST
	      STEP(record = 0)
#endif
	   fi;
	   atomic { locked = false; call = answered }

	:: atomic { sweeps < SWEEPS -> sweeps++; run sweep(false) }
	:: atomic { losses < LOSSES && !locked && record != 0 -> losses++; record = 0 }

	:: atomic { call == failed -> skip }; break	/* the kubelet has ended */
	od;
	goto end;
dead:
	/* Another one is started, and the kubelet's call has failed. */
	atomic {
		locked = false;
		if
		:: call == prepare || call == unprepare -> call = none
		:: else
		fi;
		run sweep(false);
		run server()
	};
end:
}

/* The sweep of one start. It may die with its plugin at any step, or not, and then goes on late; the final one does not. */
proctype sweep(bool final)
{
	byte seen;
	bool gone;

	atomic { !locked -> seen = record; gone = NOTHING_LEFT };
	if
	:: gone -> goto end
	:: else
	fi;
	gone = !allocated;
#ifdef SWEEP_UNASKED
	gone = true;
#endif
	if
	:: gone
	:: else -> goto end
	fi;
	if
	:: atomic { !locked -> locked = true }
	:: !final -> goto end
	fi;
#ifndef NO_RECHECK
	if
	:: record != seen -> goto unlock
	:: else
	fi;
#endif
	if :: atomic { spec = false; assert(!running) } :: !final -> goto unlock fi;	/* nothing is taken from a container */
	if :: atomic { job = false; assert(!running) } :: !final -> goto unlock fi;
	if :: atomic { region = false; assert(!running) } :: !final -> goto unlock fi;
	if :: record = 0 :: !final -> goto unlock fi;
unlock:
	locked = false;
end:
}

active proctype kubelet()
{
	byte round;

	run server();
	do
	:: round < ROUNDS ->
	   round++;
	   allocated = true;
	   do			/* until it has an answer */
	   :: atomic { call == none -> call = prepare };
	      (call != prepare);
	      if
	      :: atomic { call == answered -> call = none }; goto prepared
	      :: call == none
	      fi
	   :: atomic { call == none -> goto unpreparing }	/* the pod is deleted meanwhile */
	   od;
prepared:
	   atomic { assert(region && job && spec); running = true };
	   running = false;
	   if
	   :: goto forgotten
	   :: skip
	   fi;
unpreparing:
	   do
	   :: atomic { call == none -> call = unprepare };
	      (call != unprepare);
	      if
	      :: atomic { call == answered -> call = none; assert(NOTHING_LEFT) }; break
	      :: call == none -> goto another
	      :: call == none
	      fi
	   od;
forgotten:
	   allocated = false;
another:
	   skip
	:: else -> break
	od;
	allocated = false;
	/* One more start, when all is quiet. */
	atomic { call == none -> call = failed };
	(_nr_pr == 1);
	run sweep(true);
	(_nr_pr == 1);
	assert(NOTHING_LEFT)
}
