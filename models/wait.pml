/* Waiting for a job's end (docs/protocols.md, section 9): the locks of `alive` and of the region, and a process that waits.
 *
 * LAUNCHERS launch or join a job of one name, and may die before any step. Each has a member, which joins while its
 * launcher lives, may outlive it, and may die: its lock of the region goes with it. A launcher may also sleep for ever. A
 * process waits for the job that is there when it begins.
 */

#ifndef LAUNCHERS
#define LAUNCHERS 3
#endif
#define JOBS (LAUNCHERS + 1)

byte sharing;			/* `alive`: how many have it shared */
bool creating;			/* `alive`: one has it exclusively */
bool waiters;			/* `alive`: the one that waits has its byte */
byte region;			/* which file is at the region's path: a number for each job, 0 for none */
byte members[JOBS];		/* how many have a byte of that region locked */
bool written[JOBS];		/* its first launcher wrote down how it ended */

byte running[JOBS];		/* not in the files: launchers of that job that live */
bool over[JOBS];		/* not in the files: there was an instant at which nobody used it */
bool seen[JOBS];		/* not in the files: its first launcher has seen its command end */

#define OR_DIE :: goto dying

inline look(job)
{
	if :: running[job] == 0 && members[job] == 0 -> over[job] = true :: else fi
}

proctype launcher(byte me)
{
	byte own, ok;
	bool first, joins;

	if :: joins = true :: joins = false fi;
again:
	/* create */
	if
	:: atomic {
		ok = (sharing == 0 && !creating && !waiters);
		if :: ok -> creating = true :: else fi
	   }
	OR_DIE
	fi;
	if				/* asked who has it: nobody any more, or one that has waited */
#ifdef WAITER_IN_USE
	:: !ok -> assert(!waiters || sharing > 0 || creating); goto join
#else
	:: atomic { !ok && sharing == 0 && !creating -> goto again }
	:: atomic { !ok && (sharing > 0 || creating) -> goto join }
#endif
	:: ok
	fi;
	if
	:: region != 0 && members[region] > 0 -> creating = false; goto join
	:: else
	fi;
	if :: region = 0 :: creating = false; goto dying fi;	/* remove what is left */
	if
	:: atomic { own = me; region = me; running[own]++; creating = false; sharing++ }	/* make it, and share */
	:: creating = false; goto dying
	fi;
	first = true;
	goto runs;
join:
	if
	:: joins -> atomic {
		ok = (!creating && !waiters && region != 0);
		if :: ok -> sharing++; own = region; running[own]++ :: else fi
	   }
	:: else -> goto dying
	fi;
	if :: !ok -> goto dying :: else fi;
runs:
	/* the member joins; it has not inherited the lock, as a program that closed its descriptors */
	if
	:: atomic { members[own]++; run member(own) }
	:: skip
	fi;
	do
	:: goto sleep			/* for ever */
	:: break			/* the command has ended */
	:: goto killed
	od;
	if
	:: first ->
#ifdef END_LATE
		atomic { sharing--; running[own]--; seen[own] = true; look(own) };
		written[own] = true;
		goto dying
#else
		written[own] = true; seen[own] = true
#endif
	:: else
	fi;
killed:
	atomic { sharing--; running[own]--; look(own) };	/* by itself, or by the kernel */
	goto dying;
sleep:
end_asleep:
	false;
dying:
	skip
}

/* A member lives on for a while, or dies, which is the same to its lock; or for ever. */
proctype member(byte job)
{
	if
	:: atomic { members[job]--; look(job) }
	:: goto stays
	fi;
	goto done;
stays:
end_stays:
	false;
done:
	skip
}

byte mine;			/* what the one that waits waits for */
bool done;			/* it waits no more */

proctype waiter()
{
end_begin:
	atomic { region != 0 && !creating && running[region] > 0 -> mine = region };
round:
end_alive:
	if
	:: atomic { sharing == 0 && !creating -> waiters = true };	/* F_OFD_SETLKW */
	   waiters = false
#ifndef NO_WATCH
	:: region != mine -> goto ended
#endif
	fi;
end_region:
	if
	:: members[mine] == 0		/* F_SETLKW */
#ifndef NO_WATCH
	:: region != mine -> goto ended
#endif
	fi;
#ifndef NO_RECHECK
	if
	:: atomic { !(region != mine || (sharing == 0 && !creating && members[mine] == 0)) -> goto round }
	:: else
	fi;
#endif
ended:
	atomic {
		assert(over[mine]);
		assert(!seen[mine] || written[mine]);
		done = true
	}
}

/* When nothing moves any more, nobody waits for a job that is over. */
proctype monitor()
{
	timeout;
	assert(done || mine == 0 || region == mine && (running[mine] > 0 || members[mine] > 0))
}

init
{
	byte i;
	atomic {
		i = 1;
		do
		:: i <= LAUNCHERS -> run launcher(i); i++
		:: else -> break
		od;
		run waiter();
		run monitor()
	}
}
