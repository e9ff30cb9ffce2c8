/* Waiting for memory (shim/PROTOCOLS.md, *Waiting for memory*): requests that do not fit in a job's limit wait for room,
 * in the order of their tickets, no longer than a time.
 *
 * WAITERS take a place, and sleep until there is room for them. A holder has all of the limit, and frees it in parts. With
 * MUTUAL there is no holder: the waiters have the limit among them, and each wants one more. With OTHER a process that does
 * not wait takes memory and frees it. All of them may be killed at any step: what a dead process holds, and its place, stay
 * until a waiter looks, and nobody is woken by a death.
 *
 * The time limit is spin's timeout: nothing else can happen any more. So a waiter that could be served must not be asleep
 * then. A look without a wake is possible only after a death, and so nothing else may need it.
 */

#ifndef WAITERS
#define WAITERS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define LIMIT 2
#define HOLDER WAITERS
#define STRANGER (WAITERS + 1)
#define ALL (WAITERS + 2)

byte used;			/* the ledger's word */
bool armed;			/* Device.Wake: WakeWaiting */
byte seq;			/* Device.Wake: how often waiters were woken */
byte next = 1;			/* Header.WaitNext */
byte place[WAITERS];		/* the entries: tickets, 0 if there is none */

byte held[ALL];			/* what the ledger has for each process */
bool dead[ALL];
bool asleep[WAITERS];		/* in the kernel: nobody has woken it */
bool looks[WAITERS];		/* a process has died since its last look */
bool gone[WAITERS];		/* not in the files: it has been served or refused, or is dead */
byte ticket[WAITERS];		/* not in the files: its turn */
byte deaths = DEATHS;
byte served;			/* not in the files: the last ticket that was served */

#define WANT(n) 1

inline died(who)
{
	dead[who] = true;
	look_all()
}

inline look_all()
{
	looks[0] = true;
	looks[1] = true;
#if WAITERS > 2
	looks[2] = true;
#endif
}

inline wake_all()
{
	asleep[0] = false;
	asleep[1] = false;
#if WAITERS > 2
	asleep[2] = false;
#endif
}

#define OR_DIE(who) :: atomic { deaths > 0 -> deaths--; died(who); goto killed }

/* wake: after memory was returned, or a waiter has left */
inline wake(who)
{
#ifndef NO_WAKE
	if
	:: atomic { armed -> armed = false; seq++ };
	   if :: wake_all() OR_DIE(who) fi
	:: else
	OR_DIE(who)
	fi
#else
	skip
#endif
}

/* a process returns what it or a dead one holds: one swap of the ledger's word, and then the wake */
inline give_back(who, whose, units)
{
	if :: atomic { used = used - units; held[whose] = held[whose] - units } OR_DIE(who) fi;
	wake(who)
}

/* before: the first of the requests that come before this one, or WAITERS */
inline find_before(me)
{
	before = 0;
	do
	:: before == WAITERS -> break
	:: before < WAITERS && place[before] != 0 && place[before] < place[me] -> break
	:: else -> before++
	od
}

proctype waiter(byte me)
{
	byte before, s, n, i;
	bool behind;

	if :: atomic { ticket[me] = next; next++; place[me] = ticket[me] } OR_DIE(me) fi;
again:
	n = 0; i = 0;
#ifndef ARM_LATE
	if :: atomic { armed = true; s = seq } OR_DIE(me) fi;
#endif
	if
	:: atomic {
		find_before(me);
		if				/* it looks again when it is the first, as the clock goes on */
		:: behind && before == WAITERS && deaths < DEATHS -> looks[me] = true
		:: else
		fi;
		behind = (before < WAITERS)
	   }
	OR_DIE(me)
	fi;
#ifndef NO_ORDER
	if
	:: before < WAITERS -> goto sleep
	:: else
	fi;
#endif
	if :: n = used OR_DIE(me) fi;
	if
	:: n + WANT(me) > LIMIT -> goto sleep
	:: else
	fi;
	if
	:: atomic {
		used != n -> goto again			/* another request was faster */
	   }
	:: atomic {
		used == n;
		used = used + WANT(me);
		held[me] = held[me] + WANT(me);
		assert(used <= LIMIT);
		i = 0;
		do					/* in turn */
		:: i < WAITERS -> assert(gone[i] || ticket[i] == 0 || dead[i] || i == me || ticket[i] > ticket[me]); i++
		:: else -> break
		od;
		gone[me] = true
	   }
	OR_DIE(me)
	fi;
	goto leave;
sleep:
#ifdef ARM_LATE
	atomic { armed = true; s = seq };
#endif
	/* the kernel compares the word, and puts the thread to sleep, in one step */
	if
	:: atomic { !armed || seq != s -> goto again }
	:: atomic { armed && seq == s -> asleep[me] = true }
	OR_DIE(me)
	fi;
	if
	:: !asleep[me] -> goto again
#ifndef NO_LOOK
	:: atomic { looks[me] -> looks[me] = false; asleep[me] = false };	/* woken by its clock */
	   if
	   :: before < WAITERS ->
#ifndef KEEP_DEAD
		if :: atomic { dead[before] -> place[before] = 0 } :: else fi
#else
		skip
#endif
	   :: else ->
		n = 0;
		do			/* reap: return what a dead process held */
		:: n < ALL && dead[n] && held[n] > 0 -> i = held[n]; give_back(me, n, i); n++
		:: n < ALL && !(dead[n] && held[n] > 0) -> n++
		:: n == ALL -> break
		od
	   fi;
	   goto again
#endif
#ifndef NO_TIME
	:: atomic {
		timeout -> asleep[me] = false;		/* the time is over: this one, or another, must not be one that could be served */
		before = me;
		i = 0;
		do
		:: i < WAITERS && ticket[i] != 0 && !gone[i] && !dead[i] && ticket[i] < ticket[before] -> before = i; i++
		:: i < WAITERS && !(ticket[i] != 0 && !gone[i] && !dead[i] && ticket[i] < ticket[before]) -> i++
		:: i == WAITERS -> break
		od;
		n = 0;
		i = 0;
		do
		:: n < ALL -> i = i + (dead[n] -> held[n] : 0); n++
		:: n == ALL -> break
		od;
		assert(used - i + WANT(before) > LIMIT);
		gone[me] = true
	   }
#endif
	OR_DIE(me)
	fi;
leave:
	if :: place[me] = 0 OR_DIE(me) fi;
#ifndef LEAVE_SILENT
	wake(me);
#endif
	before = 0; n = 0; i = 0; s = 0;
	if				/* a program frees what it has, or keeps it */
	:: held[me] > 0 -> i = held[me]; give_back(me, me, i)
	:: skip
	OR_DIE(me)
	fi;
killed:
	gone[me] = true
}

proctype holder()
{
	do
	:: held[HOLDER] > 0 -> give_back(HOLDER, HOLDER, 1)
	:: atomic { held[HOLDER] > 0 && deaths > 0 -> deaths--; died(HOLDER); goto killed }
	:: held[HOLDER] == 0 -> break
	od;
killed:
	skip
}

/* takes what it can get, without a turn, and frees it */
proctype stranger()
{
	if
	:: atomic { used < LIMIT -> used++; held[STRANGER]++ }
	:: goto killed
	fi;
	give_back(STRANGER, STRANGER, 1);
killed:
	skip
}

init {
	atomic {
#ifdef MUTUAL
		held[0] = 1;
		held[1] = 1;
		used = 2;
#else
		held[HOLDER] = LIMIT;
		used = LIMIT;
		run holder();
#endif
#ifdef OTHER
		run stranger();
#endif
		run waiter(0);
		run waiter(1);
#if WAITERS > 2
		run waiter(2);
#endif
	}
}
