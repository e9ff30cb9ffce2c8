/* Root's agent as two processes (internal/agent/privsep/PROTOCOL.md): that neither lives without the other, whoever is killed,
 * stopped or taken over, and that no second agent reads beside a first.
 *
 * AGENTS are started one after the other, whenever the lock of the folder can be had. Each has a parent, a reader, and one
 * process that reaps. Parents and readers are killed before any step. A reader may have been taken over: it sleeps for ever,
 * does not end when it is asked to, or closes its end and goes on. The kernel does what it does a while after a death.
 */

#ifndef AGENTS
#define AGENTS 2
#endif

bool parent[AGENTS];		/* lives, and has the lock's file open */
bool reader[AGENTS];		/* lives */
bool reaping[AGENTS];		/* the process that reaps lives */
bool orphaned[AGENTS];		/* the parent has ended: the kernel has signals to send */
bool closed[AGENTS];		/* the parent's half of the channel */
bool hung_up[AGENTS];		/* the reader's half */
bool asked[AGENTS];		/* an operator wants this agent to end */
byte readers;			/* not on the machine: how many live */
bool calm;			/* not on the machine: from now on nobody dies, and nothing more is asked for */

#ifdef NO_LOCK_IN_READER
#define LOCKED(a) (parent[a])
#else
#define LOCKED(a) (parent[a] || reader[a])
#endif

#define OR_DIE :: !calm -> goto dying

inline end_reader(a)
{
	if :: reader[a] -> reader[a] = false; readers-- :: else fi;
	hung_up[a] = true
}

proctype run_reader(byte a)
{
	bool hostile;

	if :: hostile = false :: hostile = true fi;
end_reading:
	do
	:: atomic { !reader[a] -> break }			/* it was killed */
	:: atomic { reader[a] && closed[a] && !hostile -> end_reader(a); break }
	:: atomic { reader[a] && hostile && !calm -> hung_up[a] = true }
	:: atomic { reader[a] && !calm -> end_reader(a); break }	/* it dies */
	:: atomic { reader[a] && hostile -> break }		/* it sleeps for ever */
	od
}

proctype run_parent(byte a)
{
	/* Begin: the lock, and then the reader. */
end_locked:
	atomic {
#if AGENTS > 1
		!LOCKED(1 - a);
#endif
		parent[a] = true
	}
	if
	:: atomic { true -> reader[a] = true; readers++; assert(readers <= 1); run run_reader(a) }
	OR_DIE
	fi;
end_attending:
	do
	:: atomic { !reader[a] -> break }			/* it was waited for */
	:: atomic { reader[a] && !hung_up[a] && !calm -> reaping[a] = true }
	:: atomic { reaping[a] -> reaping[a] = false }		/* it is done */
#ifdef NO_HANG_UP
	:: atomic { asked[a] -> goto ending }
#else
	:: atomic { asked[a] || hung_up[a] -> goto ending }
#endif
	OR_DIE
	od;
	goto over;
ending:
	if
	:: closed[a] = true
	OR_DIE
	fi;
	do
	:: atomic { !reader[a] -> break }
#ifndef NO_DEADLINE
	:: atomic { reader[a] -> end_reader(a) }		/* it is late, and is killed */
#endif
	:: atomic { reaping[a] -> reaping[a] = false }
	OR_DIE
	od;
over:
	if
	:: reaping[a] = false					/* what is under way is ended */
	OR_DIE
	fi;
dying:
	atomic { parent[a] = false; orphaned[a] = true; closed[a] = true }
}

/* The kernel, when a parent has ended. */
active proctype kernel()
{
	byte a;

end:	do
	:: atomic { orphaned[0] -> a = 0 ; orphaned[0] = false; goto signal }
#if AGENTS > 1
	:: atomic { orphaned[1] -> a = 1 ; orphaned[1] = false; goto signal }
#endif
	od;
signal:
#ifndef NO_DEATH_SIGNAL
	atomic { end_reader(a) };
#endif
#ifndef NO_SIGNAL_TO_REAPER
	reaping[a] = false;
#endif
	goto end
}

active proctype operator()
{
	if :: asked[0] = true :: true fi;
	calm = true
}

init
{
	byte a;

	atomic {
		run run_parent(0);
#if AGENTS > 1
		run run_parent(1)
#endif
	}
	/* When nothing goes on by itself. */
	timeout;
	for (a : 0 .. AGENTS - 1) {
		assert(parent[a] == reader[a]);
		assert(!reaping[a] || parent[a]);
		assert(!hung_up[a] || !reader[a]);
		assert(!asked[a] || !parent[a])
	}
}
