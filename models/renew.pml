/* The limits of a job whose processes have all gone (docs/protocols.md, *The page of limits*): one that comes renews them, unless
 * another lives.
 *
 * PROCESSES come, ROUNDS times each, bring a limit of their own, and may die before any step. One word stands for all limits,
 * as each of them is renewed by itself. Liveness is that of docs/protocols.md: here a flag that a death clears.
 */

#ifndef PROCESSES
#define PROCESSES 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define YESTERDAY 9

byte limit = YESTERDAY;
bool alive[PROCESSES];		/* the process has a slot, and lives */

/* Not in the region: who has lived ever since another one read the limit. */
typedef Since { bool since[PROCESSES] };
Since lived[PROCESSES];

inline remember()
{
	j = 0;
	do
	:: j < PROCESSES -> lived[me].since[j] = alive[j]; j++
	:: else -> break
	od
}

inline gone(who)
{
	alive[who] = false;
	j = 0;
	do
	:: j < PROCESSES -> lived[j].since[who] = false; j++
	:: else -> break
	od
}

#define OR_DIE :: goto dying

inline read_limit()
{
	if :: atomic { has = limit; remember() } OR_DIE fi
}

/* One slot after the other: others come and go meanwhile. */
inline scan()
{
	used = false;
	i = 0;
	do
	:: i < PROCESSES -> if :: d_step { used = used || alive[i]; i++ } OR_DIE fi
	:: else -> break
	od
}

proctype process(byte me)
{
	byte has, i, j, round;
	bool used;

	do
	:: round < ROUNDS ->
	   round++;
#ifdef SCAN_FIRST
	   scan();
	   read_limit();
#else
	   read_limit();
	   scan();
#endif
#ifdef NO_SCAN
	   used = false;
#endif
	   if
	   :: !used && has != me + 1 ->
	      if
	      :: atomic {
#ifdef STORE
		true ->
#else
		if
		:: limit == has ->
#endif
		   assert(limit == has);		/* nobody's limit but the one that was read is replaced */
		   j = 0;
		   do
		   :: j < PROCESSES -> assert(!lived[me].since[j]); j++	/* and of nobody who lived all the while */
		   :: else -> break
		   od;
		   limit = me + 1
#ifndef STORE
		:: else
		fi
#endif
	      }
	      OR_DIE
	      fi
	   :: else
	   fi;
	   if :: alive[me] = true OR_DIE fi;		/* takes a slot */
	   assert(limit != YESTERDAY);			/* what nobody who lives has brought does not count */
	   if :: atomic { gone(me) } OR_DIE fi;
	   d_step { has = 0; i = 0; j = 0; used = false }
	:: else -> break
	od;
	goto out;
dying:
	atomic { gone(me) }
out:
	atomic { has = 0; i = 0; j = 0; used = false; round = 0 }
}

init {
	byte n;
	atomic {
		do
		:: n < PROCESSES -> run process(n); n++
		:: else -> break
		od
	}
}
