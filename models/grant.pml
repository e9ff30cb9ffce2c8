/* Granting (internal/policy/PROTOCOL.md): a job that was promised, or that a process has joined, is not taken back.
 *
 * There is memory for the jobs of PLACES users. Two users start processes, which look for their user's job, ask the keeper
 * for it if there is none, join it, and die, at any step. The keeper takes back the job of the other user if it needs the
 * place. It may die between any two steps, and starts again with what the files say. A process that gets no answer is
 * refused.
 *
 * Each job is on one of two devices, which never changes. A process initialises the driver with the device of the job that
 * it has found, before it locks a slot. It locks another byte of the region meanwhile, if the kernel lets it, and then does not
 * lose the job. If it loses the job, it asks for one on the same device.
 *
 * With RUN the keeper carves a run of the first user (carve.pml), whose job then stays until the run has ended.
 */

#define USERS 2
#ifndef PROCESSES
#define PROCESSES 3			/* of both users: the first has one more if the number is odd */
#endif
#ifndef PLACES
#define PLACES 1
#endif
#ifndef DEATHS
#define DEATHS 1			/* of the keeper */
#endif

bool folder[USERS];			/* the user has a job, also one that is being made or removed */
bool created[USERS];			/* its file `created` */
bool leaving[USERS];			/* `created` has the name `leaving` */
byte generation[USERS];			/* how many jobs of the user have been removed */
byte locked[USERS];			/* slots of the job that are locked */
byte promises[USERS];			/* descriptors with a shared lock on its `alive` */
byte joined[USERS];			/* processes that count themselves as members */
#define UNKNOWN 2			/* no file says it: a process would see all devices */
byte device[USERS] = UNKNOWN;		/* where the job is */
byte deaths = DEATHS;
bool carved, run_goes_on;		/* the run of user 0: it has been made, and has not ended */

mtype = { none, asked, granted, refused };
mtype answer[PROCESSES] = none;		/* of the connection of a process */
byte at[PROCESSES];			/* the request is for a job on device at - 1; 0 for any */
bool kept[PROCESSES];			/* the process has the driver initialised with the device of a job that it keeps by a lock */
byte running = PROCESSES;

#define PLACES_TAKEN (folder[0] + folder[1])

inline restore(u)
{
	if
	:: leaving[u] -> atomic { leaving[u] = false; created[u] = true }
	:: else
	fi
}

/* The kernel closes the connections of a dead keeper. */
inline hang_up()
{
	q = 0;
	do
	:: q < PROCESSES ->
		if
		:: answer[q] == asked -> answer[q] = refused
		:: else
		fi;
		q++
	:: else -> q = 0; break
	od
}

#define OR_DIE :: deaths > 0 -> atomic { deaths--; hang_up(); goto starts }

proctype keeper()
{
	byte p, q, u, v;
starts:
	p = 0; u = 0; v = 0;
#ifndef NO_RESTORE
	restore(0);
	restore(1);
#endif
	assert(joined[0] == 0 || created[0]);			/* other processes of the user find the job */
	assert(joined[1] == 0 || created[1]);
	do
	:: running == 0 -> break
#ifdef MOVE_IN_PLACE
	:: atomic { created[0] && locked[0] == 0 && promises[0] == 0 -> device[0] = 1 - device[0] }
#endif
#ifdef RUN
	:: atomic { created[0] && !carved -> carved = true; run_goes_on = true }
	:: run_goes_on -> run_goes_on = false
#endif
	:: atomic { answer[0] == asked -> p = 0 }; goto handle
	:: atomic { PROCESSES > 1 && answer[1 % PROCESSES] == asked -> p = 1 % PROCESSES }; goto handle
	:: atomic { PROCESSES > 2 && answer[2 % PROCESSES] == asked -> p = 2 % PROCESSES }; goto handle
	:: atomic { PROCESSES > 3 && answer[3 % PROCESSES] == asked -> p = 3 % PROCESSES }; goto handle
	od;
	goto over;
handle:
	u = p % USERS;
	v = (u + 1) % USERS;
#ifdef NO_PLACE_CHECK
	at[p] = 0;
#endif
	if
	:: created[u] ->
		if
		:: at[p] > 0 && at[p] - 1 != device[u] -> goto refuse
		:: else
		fi;
		goto promise
	:: else
	fi;
	if
	:: folder[u] ->						/* a keeper died while it made the job: make it again */
		assert(locked[u] == 0 || joined[u] == 0);
		atomic { folder[u] = false; device[u] = UNKNOWN; generation[u]++ }
	:: else
	fi;
	if
	:: PLACES_TAKEN < PLACES -> goto make
	:: else
	fi;
	/* Take back the other user's job. */
#ifndef NO_RUN_LOOK
	if
	:: v == 0 && run_goes_on -> goto refuse
	:: else
	fi;
#endif
	if
	:: promises[v] > 0 || locked[v] > 0 -> goto refuse
	:: else
	fi;
#ifndef NO_MARK
	atomic { created[v] = false; leaving[v] = true };
	if :: true OR_DIE fi;
#endif
#ifndef NO_SECOND_LOOK
	if
	:: promises[v] > 0 || locked[v] > 0 ->
		restore(v);
		goto refuse
	:: else
	fi;
	if :: true OR_DIE fi;
#endif
	atomic {						/* removed */
		assert(joined[v] == 0);
		assert(promises[v] == 0);
		assert(v != 0 || !run_goes_on);			/* the rest of the ration is the user's */
		folder[v] = false; device[v] = UNKNOWN; created[v] = false; leaving[v] = false;
		locked[v] = 0;					/* the locks are on files that nobody finds */
		generation[v]++
	};
	if :: true OR_DIE fi;
make:
	assert(PLACES_TAKEN < PLACES);
	folder[u] = true;
	if :: true OR_DIE fi;
#ifdef CREATED_BEFORE_PLACE
	created[u] = true;
	if :: true OR_DIE fi;
#endif
	if
	:: at[p] > 0 -> device[u] = at[p] - 1
	:: at[p] == 0 -> device[u] = 0
	:: at[p] == 0 -> device[u] = 1
	fi;
	if :: true OR_DIE fi;
	created[u] = true;
	if :: true OR_DIE fi;
promise:
	atomic {
		if
		:: answer[p] == asked ->
#ifndef NO_PROMISE
			promises[u]++;
#endif
			answer[p] = granted
		:: else						/* the process has died */
		fi
	};
	goto starts;
refuse:
	atomic {
		if
		:: answer[p] == asked ->
			assert(!kept[p]);			/* it could not use another device */
			answer[p] = refused
		:: else
		fi
	};
	goto starts;
over:
	skip
}

/* A process locks a byte of the region that it has found, or lets go of it. */
inline hold()
{
	atomic {
		if
		:: !again && generation[u] == mine -> held = true; locked[u]++
		:: true							/* it cannot, or it was promised the job */
		fi
	}
}

inline drop()
{
	if
	:: held && generation[u] == mine -> locked[u]--
	:: else
	fi;
	held = false; kept[p] = false
}

/* A process dies: the kernel drops its promise and its lock, and closes its connection. */
inline die()
{
	d_step {
		drop();
		if
		:: in -> joined[u]--
		:: else
		fi;
		if
		:: lock && generation[u] == mine -> locked[u]--
		:: else
		fi;
#ifndef NO_PROMISE
		if
		:: answer[p] == granted -> promises[u]--
		:: else
		fi;
#endif
		answer[p] = none;
		in = false; lock = false; mine = 0;
		running--
	};
	goto dead
}

#define MAY_DIE if :: true :: die() fi

proctype process(byte p)
{
	byte u = p % USERS, mine;
	bool lock, in, again, held;
	byte sees;						/* the driver shows device sees - 1; 0 before it is initialised */
look:
	if
	:: created[u] -> goto opens
	:: else
	fi;
ask:
	atomic { at[p] = (sees == UNKNOWN + 1 -> 0 : sees); answer[p] = asked; again = true };
	if
	:: answer[p] == granted -> d_step { drop() }
	:: answer[p] == refused -> die()
	:: die()
	fi;
opens:
	if
	:: !created[u] -> goto lost
	:: atomic { created[u] -> mine = generation[u] }	/* `created` says which job it is */
	fi;
	if
	:: sees == 0 ->
		sees = device[u] + 1;
#ifndef HOLD_LATE
		hold();
#endif
#ifndef NO_EARLY_CHECK
		if
		:: atomic { created[u] && generation[u] == mine -> kept[p] = held }	/* the device was of this job: initialise the driver */
		:: else -> sees = 0; goto lost
		fi;
#endif
#ifdef HOLD_LATE
		hold(); kept[p] = held;
#endif
		skip
	:: else
	fi;
	MAY_DIE;
	atomic {						/* it has the file open, also if it has been removed */
		lock = true;
		if
		:: generation[u] == mine -> locked[u]++
		:: else
		fi
	};
	MAY_DIE;
	atomic {
#ifndef NO_CHECK
		if
		:: created[u] && generation[u] == mine
		:: else -> goto lost
		fi;
#endif
		assert(folder[u] && generation[u] == mine);
		assert(sees - 1 == device[u]);
		in = true;
		joined[u]++
	};
	d_step { drop() };
#ifndef NO_PROMISE
	atomic {
		if
		:: answer[p] == granted -> promises[u]--
		:: else
		fi;
		answer[p] = none
	};
#endif
	die();
lost:
	/* It was not promised anything. */
	assert(!again);
	d_step {
		if
		:: lock && generation[u] == mine -> locked[u]--
		:: else
		fi;
		lock = false; mine = 0
	};
	goto ask;
dead:
	skip
}

init {
	byte i;
	atomic {
#ifdef STARTED
		folder[0] = true; device[0] = 0; created[0] = true;	/* by a process that has ended */
#endif
		run keeper();
		i = 0;
		do
		:: i < PROCESSES -> run process(i); i++
		:: else -> break
		od
	}
}
