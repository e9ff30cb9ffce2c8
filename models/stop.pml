/* The end of processes that escape (internal/agent/privsep/PROTOCOL.md): that a signal reaches no process of another user
 * than the job's, and no other process than the request names, whatever the reader asks for.
 *
 * There is one PID. Processes come and go under it: each is one of the kinds below, and has a start time of its own. A process may
 * become another user's at any time, as by a set-uid program. The reader was taken over: it asks for any start
 * time and either user. A parent may be killed before any step; it stores nothing.
 */

#ifndef PROCESSES
#define PROCESSES 3
#endif

#define NOBODY 255

#define JOBS_USER 1		/* user of the job that the request names */
#define OTHER_USER 2

byte now = 0;			/* the process with the PID; NOBODY if there is none */
byte began = 1;			/* not on the machine: processes that there were */
byte user[PROCESSES];
bool member[PROCESSES];		/* it has locked the job's region itself */
bool alive[PROCESSES];
byte asked_start, asked_user;
bool done;			/* the parent has ended with the request */

/* Whether the kernel lets the parent's thread send the signal. */
#ifdef AS_ROOT
#define MAY(p) true
#else
#define MAY(p) (user[p] == asked_user)
#endif

inline start_process(p)
{
	alive[p] = true;
	if :: user[p] = JOBS_USER :: user[p] = OTHER_USER fi;
	if :: member[p] = true :: member[p] = false fi
}

/* What the kernel and the processes do. */
active proctype processes()
{
	atomic { start_process(0) };
end:	do
	:: atomic { !done && now != NOBODY -> alive[now] = false; now = NOBODY }	/* it ends */
	:: atomic { !done && now == NOBODY && began < PROCESSES -> now = began; began++; start_process(now) }
	:: atomic { !done && now != NOBODY && user[now] == JOBS_USER -> user[now] = OTHER_USER }
	:: done -> break
	od
}

active proctype parent()
{
	byte handle, start, owner;
	bool locked, dead;

	/* The reader asks for anything. A start time names a process. */
	if :: asked_start = 0 :: asked_start = 1 :: asked_start = 2 fi;
	if :: asked_user = JOBS_USER :: asked_user = OTHER_USER fi;
	/* The job is that of JOBS_USER: one of another user is refused. */
	if :: asked_user != JOBS_USER -> goto over :: else fi;
#ifdef CHECK_BEFORE_OPEN
	atomic { now != NOBODY -> start = now; owner = user[now]; locked = member[now] };
	atomic { if :: now == NOBODY -> goto over :: else -> handle = now fi };
#else
	atomic { if :: now == NOBODY -> goto over :: else -> handle = now fi };	/* opens a handle of the process */
	if :: goto over :: true fi;						/* it may be killed */
	/* Each fact is read by PID, and may be another process's. */
	atomic { if :: now == NOBODY -> goto over :: else -> start = now fi };
	atomic { if :: now == NOBODY -> goto over :: else -> owner = user[now] fi };
	atomic { if :: now == NOBODY -> goto over :: else -> locked = member[now] fi };
#endif
	dead = !alive[handle];
	if :: dead -> goto over :: else fi;
#ifndef NO_START
	if :: start != asked_start -> goto over :: else fi;
#endif
	if :: owner != asked_user -> goto over :: else fi;
#ifndef NO_MEMBER
	if :: !locked -> goto over :: else fi;
#endif
	if :: goto over :: true fi;						/* it may be killed */
	/* The signal: the kernel looks at the user that the process has now. */
#ifdef BY_PID
	atomic { if :: now == NOBODY -> goto over :: else -> handle = now fi };
#endif
	atomic {
		if
		:: alive[handle] && MAY(handle) ->
			assert(user[handle] == JOBS_USER);
			assert(handle == asked_start);
			assert(member[handle])
		:: else
		fi
	};
over:
	done = true
}
