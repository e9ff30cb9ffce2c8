/* The claims to be busy of processes of low priority, and the slices that follow from them:
 * shim/compute/PROTOCOLS.md, *Claims* and *Priority*.
 *
 * Processes of low priority launch, wait and go idle, each in a job of its own. A process that finds
 * another one busy waits for its turn, or has waited for too long and launches all the same. At the
 * end of its turn it may give its claim back, even if the device still has work of it. Each process
 * may die before any step; the kernel then drops its claim, and the device its work. A claim that is
 * not renewed ends some time after the process's work has. One process of high priority comes, works
 * and dies. A process of a user that may not have high priority claims it all the same. Any lock may
 * fail.
 *
 * Safety: of the contexts of low priority that have work, at most one has a short slice.
 * At the end, a process that looks once more has the right slice. */

#ifndef LOWS
#define LOWS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define OWN     0
#define SHORT   1
#define SEVERAL 2

byte claim[LOWS];     /* to be busy; 1: it counts */
byte work[LOWS];      /* the device has work of it */
byte launching[LOWS]; /* from its claim to its launch, which takes less than a lease */
byte waits[LOWS];     /* a thread waits for the device, and cannot renew */
byte dead[LOWS];
byte slice[LOWS];
byte high;            /* there is a claim of high priority that counts */
byte lie;             /* there is one of a user that may not have it */
byte ended;           /* processes that have ended */

inline check()
{
	d_step {
		j = 0; n = 0;
		do
		:: j < LOWS ->
			n = n + (work[j] && !dead[j] && slice[j] == SHORT);
			j++
		:: else -> break
		od;
		assert(n <= 1);
		j = 0; n = 0
	}
}

#ifdef COUNT_LIE
#define HIGH (high || lie)
#else
#define HIGH high
#endif

/* The kernel is asked about one seat after the other. */
inline look()
{
	seen = 0; i = 0;
	if
	:: HIGH ->
		do
		:: i < LOWS -> d_step { seen = seen + (i != me && claim[i]); i++ }
		:: else -> break
		od;
#if defined(RECORD_FAILED) || defined(LOOK_FIRST)
		slice[me] = (seen > 0 -> SEVERAL : SHORT)
#else
		slice[me] = (seen > 0 || !claim[me] -> SEVERAL : SHORT)
#endif
	:: else -> slice[me] = OWN
	fi;
	i = 0; seen = 0
}

/* Only a process that is busy has a short slice. */
inline drop()
{
#ifdef DROP_FIRST
	claim[me] = 0;
#endif
	slice[me] = (slice[me] == SHORT -> SEVERAL : slice[me]);
	claim[me] = 0
}

/* A claim is extended before its old end is removed. If the lock fails, or takes too long and is not tried
 * for a while, the process gives the claim back that it has. */
inline hold()
{
#ifdef DROP_THEN_HOLD
	claim[me] = 0;
#endif
	if
	:: claim[me] = 1
#ifdef RECORD_FAILED
	:: skip
#else
	:: drop()
#endif
	fi
}

#define LAUNCHING(is) launching[me] = is

#define MAY_DIE if :: goto died :: skip fi

proctype low(byte me)
{
	byte i, j, n, seen, round;
	do
	:: round < ROUNDS ->
		round++;
		MAY_DIE;
		LAUNCHING(1);
#ifdef LOOK_FIRST
		look();
		MAY_DIE;
		hold();
#else
		hold();
		MAY_DIE;
		look();
#endif
		MAY_DIE;
		if
		:: slice[me] == SEVERAL -> drop(); LAUNCHING(0); goto next /* not its turn */
		:: skip /* its turn, or it has waited for too long */
		fi;
		d_step { work[me] = 1; LAUNCHING(0) };
		check();
		/* Another launch within a few milliseconds does not look: the claim still counts. */
		if
		:: atomic { claim[me] -> LAUNCHING(1) }; hold(); look(); LAUNCHING(0); check()
		:: skip
		fi;
		if
		:: /* it waits */
			LAUNCHING(1);
			hold();
			atomic { waits[me] = 1; LAUNCHING(0) };
			MAY_DIE;
			work[me] == 0;
			atomic { waits[me] = 0; LAUNCHING(1) };
			hold();
			look();
			LAUNCHING(0);
			check()
		:: LAUNCHING(1); drop(); LAUNCHING(0); check() /* its turn is over */
		:: skip /* it goes idle, and comes back when its lease is over, or before */
		fi;
next:
		MAY_DIE
	:: else -> break
	od;
	goto end;
died:
	skip;
	d_step {
		dead[me] = 1; work[me] = 0; waits[me] = 0; LAUNCHING(0);
#ifndef KEEP_DEAD
		claim[me] = 0
#endif
	};
end:
	ended++
}

/* The device ends work, and time ends claims. */
#ifdef NO_WAIT_CLAIM
#define OVER(k) (claim[k] && !dead[k] && !launching[k] && (waits[k] || !work[k]))
#else
#define OVER(k) (claim[k] && !dead[k] && !launching[k] && !waits[k] && !work[k])
#endif
#define MACHINE(k) \
	:: atomic { work[k] -> work[k] = 0 } \
	:: atomic { OVER(k) -> claim[k] = 0 }

active proctype machine()
{
	do
	:: atomic { ended == LOWS + 1 -> break }
	MACHINE(0)
	MACHINE(1)
#if LOWS > 2
	MACHINE(2)
#endif
	od
}

active proctype liar()
{
	lie = 1
}

active proctype serving()
{
	high = 1;
	if
	:: high = 0; high = 1
	:: high = 0
	:: skip
	fi;
	ended++
}

/* When all else is over, a process that lives and has work looks once more. */
active proctype last()
{
	byte i, seen, me, alive;
	ended == LOWS + 1;
	/* The leases of the living are over, but for that of the first one that lives. */
	d_step {
		me = LOWS; i = 0;
		do
		:: i < LOWS ->
			if
			:: !dead[i] && me == LOWS -> me = i; claim[i] = 1; launching[i] = 1
			:: !dead[i] && me != LOWS -> claim[i] = 0
			:: else -> skip
			fi;
			i++
		:: else -> break
		od;
		i = 0
	};
	if
	:: me < LOWS -> look(); assert(slice[me] == (high -> SHORT : OWN))
	:: else -> skip
	fi
}

init {
	atomic {
		run low(0);
		run low(1);
#if LOWS > 2
		run low(2)
#endif
	}
}
