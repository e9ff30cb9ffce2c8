/* Waiting for a job's end (docs/protocols.md, *`alive`*): the locks of `alive` and of the region, and a process that waits.
 *
 * LAUNCHERS launch or join a job of one name, and may die before any step. Each has a member, which joins while its
 * launcher lives, may outlive it, and may die: its lock of the region goes with it. A launcher may also sleep for ever. A
 * process waits for the job that is there when it begins.
 */

#ifndef LAUNCHERS
#define LAUNCHERS 3
#endif
#define JOBS (LAUNCHERS + 1)
#define SLOTS (LAUNCHERS + 1)	/* of a region: one more than processes join */
#define ALL ((1 << SLOTS) - 1)

byte sharing;			/* `alive`: how many have it shared */
bool creating;			/* `alive`: one has it exclusively */
bool waiters;			/* `alive`: the one that waits has its byte */
byte region;			/* which file is at the region's path: a number for each job, 0 for none */
byte members[JOBS];		/* whose bytes of that region are locked: a bit for each slot */
byte held;			/* bits of the slots that the one that waits has locked, of the region that it waits for */
bool written[JOBS];		/* its first launcher wrote down how it ended */

byte running[JOBS];		/* not in the files: launchers of that job that live */
bool over[JOBS];		/* not in the files: there was an instant at which nobody used it */
bool seen[JOBS];		/* not in the files: its first launcher has seen its command end */

byte mine;			/* what the one that waits waits for */

#define OR_DIE :: goto dying

inline look(job)
{
	if :: running[job] == 0 && members[job] == 0 -> over[job] = true :: else fi
}

proctype launcher(byte me)
{
	byte own, ok, slot;
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
	:: atomic {
		ok = members[own];
		if :: own == mine -> ok = ok | held :: else fi;	/* a slot that cannot be locked is passed over */
		slot = 0;
		do
		:: ok & (1 << slot) -> slot++
		:: else -> break
		od;
		assert(slot < SLOTS);		/* there is room, whoever waits */
		members[own] = members[own] | (1 << slot);
		run member(own, slot)
	   }
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
proctype member(byte job, slot)
{
	if
	:: atomic { members[job] = members[job] & (ALL - (1 << slot)); look(job) }
	:: goto stays
	fi;
	goto done;
stays:
end_stays:
	false;
done:
	skip
}

bool done;			/* it waits no more */

proctype waiter()
{
	byte slot;

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
	:: atomic { members[mine] == 0 -> slot = 0 }	/* F_GETLK: nobody has a byte locked */
#ifdef WAIT_FOR_ALL
	   ; held = ALL;
	   held = 0
#endif
#ifndef WAIT_FOR_ALL
	:: atomic {			/* F_GETLK: one of those who have */
		members[mine] != 0 -> slot = 0;
		do
		:: members[mine] & (1 << slot) -> break
		:: else -> slot++
		od
	   };
end_slot:
	   if
	   :: atomic { !(members[mine] & (1 << slot)) -> held = 1 << slot };	/* F_SETLKW */
	      held = 0; goto end_region
#ifndef NO_WATCH
	   :: region != mine -> goto ended
#endif
	   fi
#endif
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
