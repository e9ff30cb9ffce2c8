/* The ration of a run (internal/policy/PROTOCOL.md): a user's jobs never have more than the ration between them.
 *
 * The keeper makes a run with a part of a user's RATION, and gives it back when no process is in the run. It may die between
 * any two steps, and starts again with what the files say. With RESIZES, root gives the run a larger part meanwhile, which it
 * has from the user's job, and the run's limit is its part when the keeper has started again. OUTSIDE processes of the user's own job and INSIDE of the run each
 * ask for a byte at a time, hold, and die. A request is one of the ledger (docs/protocols.md): read the word, read the limit, swap. What the word
 * is compared with is its count of changes, so that a fence makes the swap fail. A process joins a run only when it is ready,
 * and has its slot locked from before its first request until it dies; what a dead process holds is returned with it.
 */

#ifndef RATION
#define RATION 3
#endif
#ifndef OUTSIDE
#define OUTSIDE 1
#endif
#ifndef INSIDE
#define INSIDE 1
#endif
#ifndef DEATHS
#define DEATHS 1			/* of the keeper */
#endif

#ifndef RESIZES
#define RESIZES 0
#endif

#define OWN 0				/* the user's own job */
#define RUN 1

#define PART 2				/* what the run asks for */
#define LARGER 3			/* what root gives it */

byte limit[2], held[2], changes[2];
byte locked;				/* processes that have a slot in the run */
bool ready;				/* processes can join it */
bool there;				/* it has a folder */
byte part;				/* the file in it */
byte deaths = DEATHS, resizes = RESIZES;

/* At every instant, also when the keeper is dead. */
#define SUM_HOLDS (limit[OWN] + limit[RUN] <= RATION)
#define COVERED (held[OWN] + held[RUN] <= RATION)

inline check()
{
	assert(SUM_HOLDS);
	assert(COVERED)
}

/* A request of one byte in a job: read the word, read the limit, and swap. Between any two it may be stopped for long. */
inline request(j)
{
	d_step { was = changes[j]; has = held[j] };
	most = limit[j];
	if
	:: has + 1 > most
	:: else ->
		d_step {
			if
			:: changes[j] == was -> held[j]++; changes[j]++; mine++
			:: else
			fi;
			was = 0; has = 0; most = 0
		};
		check()
	fi
}

proctype outside()
{
	byte was, has, most, mine, n;
	do
	:: n < 2 -> request(OWN); n++
	:: break
	od;
	skip;
	d_step { held[OWN] = held[OWN] - mine; changes[OWN]++; mine = 0 }
}

proctype inside()
{
	byte was, has, most, mine;
	bool in;
	/* It may look for the run at any time, and join it late. */
	if
	:: d_step { ready -> locked++; in = true }
	:: true
	fi;
	if
	:: in ->
		request(RUN);
#if RESIZES
		request(RUN);
#endif
		request(RUN)
	:: else
	fi;
	if
	:: in -> d_step { held[RUN] = held[RUN] - mine; changes[RUN]++; mine = 0; locked-- }
	:: else
	fi
}

#define OR_DIE :: deaths > 0 -> deaths--; goto starts

proctype keeper()
{
	byte rounds, before;
starts:
	/* From the files: what is not ready ends, and so does what no process is in. */
	before = 0;
	if
	:: there && !ready ->
		limit[RUN] = 0; check();
		there = false
	:: there && ready ->
		/* The ration is divided: first what is lowered, then what is raised. */
		if
		:: limit[RUN] > part -> limit[RUN] = part; check()
		:: else
		fi;
		if :: true OR_DIE fi;
		if
		:: limit[OWN] > RATION - part -> limit[OWN] = RATION - part; check()
		:: else
		fi;
		if :: true OR_DIE fi;
		limit[RUN] = part; check();
		if :: true OR_DIE fi;
		limit[OWN] = RATION - part; check();
		goto waits
	:: else
	fi;
	limit[OWN] = RATION; check();

	if
	:: rounds == 1 -> goto over
	:: else -> rounds++
	fi;
	there = true;						/* made, with a limit of nothing */
	if :: true OR_DIE fi;
	limit[OWN] = RATION - PART; check();			/* lowered */
	if :: true OR_DIE fi;
#ifndef NO_FENCE
	changes[OWN]++;
#endif
#ifndef NO_CHECK
	if
	:: held[OWN] > RATION - PART ->				/* refused */
		limit[OWN] = RATION; check();
		there = false;
		goto over
	:: else
	fi;
#endif
	if :: true OR_DIE fi;
	part = PART;						/* kept */
	if :: true OR_DIE fi;
	limit[RUN] = PART; check();				/* given */
	if :: true OR_DIE fi;
	ready = true;
	if :: true OR_DIE fi;
waits:
	if
	:: resizes > 0 && part < LARGER ->
		resizes--;
		limit[OWN] = RATION - LARGER; check();
		if :: true OR_DIE fi;
#ifdef KEEP_FIRST
		part = LARGER;
		if :: true OR_DIE fi;
#endif
		changes[OWN]++;
		if
		:: held[OWN] > RATION - LARGER ->		/* refused */
#ifdef KEEP_FIRST
			part = PART;
#endif
			limit[OWN] = RATION - PART; check()
		:: else ->
			if :: true OR_DIE fi;
#ifndef KEEP_LAST
			part = LARGER;				/* kept */
			if :: true OR_DIE fi;
#endif
			limit[RUN] = LARGER; check();
			if :: true OR_DIE fi;
			part = LARGER
		fi;
		if :: true OR_DIE fi
	:: true
	fi;
#ifdef RAISE_FIRST
	locked == 0;
	limit[OWN] = RATION; check();
	limit[RUN] = 0; check();
#else
#ifdef LOOK_FIRST
	locked == 0;						/* one may join after that, with the limit that it finds */
	limit[RUN] = 0;
#else
	locked == 0;
	before = limit[RUN];
	limit[RUN] = 0;						/* ended */
	if :: true OR_DIE fi;
	if
	:: locked > 0 ->					/* one has come in meanwhile */
		limit[RUN] = before; check();
		goto waits
	:: else
	fi;
#endif
#endif
	atomic { ready = false; there = false };		/* removed */
	if :: true OR_DIE fi;
	limit[OWN] = RATION; check();
over:
	check()
}

init {
	byte i;
	atomic {
		limit[OWN] = RATION;
		run keeper();
		i = 0;
		do
		:: i < OUTSIDE -> run outside(); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < INSIDE -> run inside(); i++
		:: else -> break
		od
	}
}
