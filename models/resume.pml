/* The queue of a policy over a restart of its keeper (internal/policy/PROTOCOL.md, *Waiting*): who was in the file of those
 * that wait is served before everybody who came later, and a client that is gone holds up nobody.
 *
 * USERS ask for the only ration. The keeper gives each a ticket, writes the file, and grants the ration to the first. It may
 * die at any step: its tickets are gone then, and the clients ask again. A client may die, too.
 */

#define USERS 3
#define NONE 255
#ifndef DEATHS
#define DEATHS 2			/* of the keeper */
#endif
#ifndef LEAVERS
#define LEAVERS 1			/* clients that die */
#endif

byte line[USERS], tickets;		/* the keeper's tickets */
byte file[USERS], written;		/* what it has written */
byte was[USERS], found;			/* what it has read at its start */

bool asks[USERS];			/* its client is connected to the keeper that lives */
bool came[USERS];			/* that keeper has read the request */
bool granted[USERS];
bool gone[USERS];			/* the client has what it wanted, or is dead */
byte holder = NONE;			/* whose job has the ration */
bool promised;				/* the keeper holds it for clients that have not joined it */

byte deaths = DEATHS, leavers = LEAVERS;
byte clock = 1;
byte first[USERS], shown[USERS];	/* not in the files: when it got its first ticket, and was first in the file */
byte i, k;

#define IN_LINE(u) (tickets > 0 && line[0] == u || tickets > 1 && line[1] == u || tickets > 2 && line[2] == u)

inline append(number)
{
	atomic {
		if
		:: !IN_LINE(number) ->
			line[tickets] = number;
			tickets++;
			if :: first[number] == 0 -> first[number] = clock; clock++ :: else fi
		:: else
		fi
	}
}

inline remove(number)
{
	atomic {
		i = 0;
		k = 0;
		do
		:: k < tickets ->
			if :: line[k] != number -> line[i] = line[k]; i++ :: else fi;
			k++
		:: else -> break
		od;
		do
		:: k > i -> k--; line[k] = 0
		:: else -> break
		od;
		tickets = i
	}
}

inline publish()
{
	atomic {
		written = tickets;
		k = 0;
		do
		:: k < USERS ->
			file[k] = line[k];
			if :: k < tickets && shown[line[k]] == 0 -> shown[line[k]] = clock; clock++ :: else fi;
			k++
		:: else -> break
		od
	}
}

#define OR_DIE :: atomic { deaths > 0 -> deaths--; goto dead }
#define ROOM (holder == NONE || gone[holder] && !promised)	/* a job without a process is taken back */
#define ENDED (gone[0] && gone[1] && gone[2])
#define ASKS(u) :: atomic { asks[u] && !came[u] -> came[u] = true; who = u }
#ifdef NO_GIVE_UP
#define LEFT(u) (gone[u] && came[u])
#else					/* its connection has ended, or it has not come for ten seconds */
#define LEFT(u) gone[u]
#endif
#define LEAVES(u) :: atomic { IN_LINE(u) && LEFT(u) -> who = u }

active proctype keeper()
{
	byte who, n;

start:
	atomic {
		found = written;
		n = 0;
		do
		:: n < USERS -> was[n] = file[n]; n++
		:: else -> break
		od;
		n = 0
	};
#ifdef FORGET
	found = 0;
#endif
#ifdef PUBLISH_FIRST
	if :: publish() OR_DIE fi;
#endif
#ifndef SERVE_FIRST
resume:
	do
	:: n < found ->
		if
		:: atomic { if :: !gone[was[n]] && !granted[was[n]] -> append(was[n]) :: else fi; n++ }
		OR_DIE
		fi;
#ifdef PUBLISH_EACH
		if :: publish() OR_DIE fi
#endif
	:: else -> break
	od;
	if :: publish() OR_DIE fi;
#endif
	do
#ifdef SERVE_FIRST
	:: n < found -> append(was[n]); n++
#endif
	:: if ASKS(0) ASKS(1) ASKS(2) fi;
		if
		:: granted[who] -> skip
		:: else ->
			append(who);
			if :: publish() OR_DIE fi
		fi
	:: atomic {
		tickets > 0 && ROOM && !granted[line[0]] -> who = line[0];
		n = 0;
		do
		:: n < USERS ->
			assert(n == who || gone[n] || granted[n] || shown[n] == 0 || first[who] < shown[n]);
			n++
		:: else -> break
		od;
		n = found;
		granted[who] = true;
		holder = who;
		promised = true
	   };
		if :: remove(who) OR_DIE fi;
		if :: publish() OR_DIE fi
	:: if LEAVES(0) LEAVES(1) LEAVES(2) fi;
		remove(who);
		if :: publish() OR_DIE fi
	:: atomic { promised && LEFT(holder) -> promised = false }
	:: ENDED && tickets == 0 -> goto done
	OR_DIE
	od;
dead:
	atomic {				/* the kernel drops its tickets and connections */
		tickets = 0;
		promised = false;
		n = 0;
		do
		:: n < USERS -> line[n] = 0; asks[n] = false; came[n] = false; n++
		:: else -> break
		od
	};
	goto start;
done:
	skip
}

proctype client(byte me)
{
	do
	:: atomic { !asks[me] && !granted[me] -> asks[me] = true }
	:: atomic { granted[me] -> gone[me] = true; break }	/* it has run, and ended */
	:: atomic { !granted[me] && leavers > 0 -> leavers--; gone[me] = true; asks[me] = false; break }
	od
}

init {
	atomic {
		byte c;
		do
		:: c < USERS -> run client(c); c++
		:: else -> break
		od
	}
}
