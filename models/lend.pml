/* Lending (internal/policy/PROTOCOL.md): the ration of a job that sleeps is given to another user, and the job wakes only
 * with a ration that fits.
 *
 * The device has room for one ration. The job of one user sleeps; its helper wakes it, ROUNDS times. Another user asks for
 * a ration ROUNDS times, and ends. The keeper serves one request after the other, may die between any two steps, and starts
 * again with what the files say. That the job sleeps is what the keeper has read at some time before.
 */

#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 2			/* of the keeper */
#endif

bool ration = true;			/* root's file: the limit of the sleeper's job is the ration, and not 0 */
bool other;				/* the other user has a job, with its ration */
bool units;				/* the ledger: the sleeper's memory is charged */
byte fences;				/* of the ledger's word */
bool asleep = true;			/* the region's word */
byte promises;				/* descriptors with a shared lock on `alive` */
bool wants_ration, wants_other;		/* requests */
byte deaths = DEATHS;
bool ended;

bool returned;				/* not in the files: it was given back, and the helper has not tried yet */

#define FITS assert(!(units && other))
#define OR_DIE :: atomic { deaths > 0 -> deaths--; goto killed }

inline fence()
{
#ifndef NO_FENCE
	fences++;
#endif
	held = units
}

active proctype keeper()
{
	bool saw, held;
start:
#ifdef BLIND_START			/* gives it back without looking for room */
	ration = true;
#elif !defined(NO_START)
	if
	:: !ration && !other -> ration = true
	:: else
	fi;
#endif
end:	do
	:: wants_ration && (ration || !other) ->
	   /* the helper: give it back, and promise it */
	   if :: ration = true OR_DIE fi;
	   if :: atomic { promises++; returned = true; wants_ration = false } OR_DIE fi
	:: wants_other && !ration && !other ->
	   if :: atomic { other = true; FITS; wants_other = false } OR_DIE fi
	:: wants_other && ration && !other ->
	   saw = asleep;
	   if
#ifdef NO_PROMISE
	   :: saw ->
#else
	   :: saw && promises == 0 ->
#endif
#ifdef CHECK_FIRST
	      if :: atomic { fence() } OR_DIE fi;
	      if :: !held -> ration = false :: else fi;
#else
	      atomic { assert(!returned); ration = false };
	      if :: skip OR_DIE fi;
#ifdef GRANT_FIRST
	      atomic { other = true; FITS };
#endif
	      if :: atomic { fence() } OR_DIE fi;
#endif
	      if
	      :: held -> ration = true
#ifndef NO_SECOND_LOOK
	      :: !held && !asleep -> ration = true	/* it woke before, and has freed its memory */
	      :: !held && asleep ->
#else
	      :: else ->
#endif
		 if :: atomic { other = true; FITS; wants_other = false } OR_DIE fi
	      fi
	   :: else
	   fi
	OR_DIE
	od;
killed:
	goto start
}

/* The process that wakes the job. */
active proctype helper()
{
	byte n, f;
	bool limit;
	do
	:: n < ROUNDS ->
	   do
	   :: !ration -> wants_ration = true; !wants_ration
	   :: else
	      /* a charge: reads the limit, and swaps the word that it has read before */
	      f = fences;
	      limit = ration;
	      if
	      :: !limit -> returned = false
	      :: limit ->
		 if
		 :: atomic { fences == f -> units = true; returned = false; FITS } ; break
		 :: fences != f
		 fi
	      fi
	   od;
	   asleep = false;			/* restored */
	   promises = 0;
	   n++;
	   if
	   :: units = false			/* the program frees all memory */
	   :: skip
	   fi;
	   /* it sleeps again: the driver has put all aside, then the word, then the ledger */
	   if
	   :: n < ROUNDS -> asleep = true; units = false
	   :: else
	   fi
	:: else -> break
	od;
	ended = true
}

active proctype newcomer()
{
	byte n;
	do
	:: n < ROUNDS ->
	   wants_other = true;
	   if
	   :: !wants_other -> n++; other = false	/* it ends */
	   :: ended && !asleep && wants_other -> atomic { wants_other = false; break }
	   fi
	:: else -> break
	od
}

/* When nothing else happens, a job that is awake has its ration. */
active proctype last()
{
	timeout -> assert(!ended || ration)
}
