/* Which events an agent has logged (internal/agent/PROTOCOL.md): an agent that is started again logs what none before it has.
 *
 * A job starts, something else happens to it, and it ends. Agents, one after the other, look at it, log what they have not
 * logged and remember it in a file, write the file anew now and then, and die before any step; the last one does not, and looks
 * when all has happened. A look sees what is there, or only a part of it, as one by a hint does. The end cannot be read
 * from a region: an agent notices it if it knows that the job ran. What happens has its time a moment, or long, before it can
 * be seen.
 *
 * FULL: the disk is full for a while, at any moment.
 */

#ifndef DEATHS
#define DEATHS 2
#endif

#define START 0
#define OTHER 1
#define END   2
#define EVENTS 3

bool there[EVENTS];		/* a look can see it; of END: the job has ended */
byte stamp[EVENTS];		/* its own time */
byte clock = 1;
bool over;			/* nothing more happens */

/* The file. */
bool kept[EVENTS];		/* a line says that it was logged */
bool ran;			/* a line says that the job ran when its start was logged */
bool torn;			/* it ends with half a line */
byte until;			/* BY_TIME only */

/* Not in any file: what was logged, and what may be logged again. */
byte lines[EVENTS];
bool promised;			/* the start was remembered while the job ran: its end will be logged */
byte doubles, allowed, deaths;
bool no_room, failed;		/* the disk; the last write */
bool lives;			/* there is an agent */

inline happens(e) { d_step { stamp[e] = clock; clock++ } }

/* The job. What happens to it gets its time a moment before it can be seen. */
active proctype world()
{
	happens(START); there[START] = true;
	if
	:: happens(OTHER); there[OTHER] = true; happens(END); there[END] = true
	:: happens(END); there[END] = true
	:: happens(OTHER); there[OTHER] = true
	:: happens(END); happens(OTHER); there[OTHER] = true; there[END] = true	/* its launcher saw the end of the command */
	fi;
	over = true
}

#ifdef FULL
active proctype disk()
{
end:	no_room = true;
end_2:	no_room = false
}
#endif

#define OR_DIE :: mortal -> goto dying

inline log_line(e)
{
	if
	:: d_step {
#ifndef BY_TIME
		if :: lines[e] > 0 -> doubles++; assert(doubles <= allowed) :: else fi;
#endif
		lines[e]++;
		logged[e] = true;
		unsaved[e] = true
	   }
	   OR_DIE
	fi
}

/* Appends all that is not in the file, in one write. A kill leaves all of it, nothing, or half a line at its end. */
inline save()
{
	if
	:: d_step {
		no_room -> failed = true;
#ifdef FORGET_UNSAVED
		unsaved[START] = false; unsaved[OTHER] = false; unsaved[END] = false
#endif
	   }
	:: d_step {
		!no_room -> failed = false;
#ifdef JOIN_TORN
		if :: torn :: else -> /* behind half a line there is no line */
#endif
		for (i : 0 .. EVENTS - 1) {
			if :: unsaved[i] -> kept[i] = true; unsaved[i] = false :: else fi
		};
#ifdef JOIN_TORN
		fi;
		unsaved[START] = false; unsaved[OTHER] = false; unsaved[END] = false;
#endif
		torn = false;
#ifndef NO_RAN
#ifndef RAN_LATE
		if :: kept[START] && runs -> ran = true :: else fi;
#endif
#endif
		if :: kept[START] && runs -> promised = true :: else fi
	   }
	:: d_step { mortal -> torn = true }; goto dying
	OR_DIE
	fi;
#ifdef RAN_LATE
	if :: d_step { if :: kept[START] && runs -> ran = true :: else fi } OR_DIE fi
#endif
}

/* Writes the file anew: beside it, and renamed. */
inline compact()
{
	if
	:: no_room
	:: !no_room ->
#ifdef IN_PLACE
	   if :: d_step { kept[START] = false; kept[OTHER] = false; kept[END] = false } OR_DIE fi;
#endif
	   if
	   :: d_step {
		for (i : 0 .. EVENTS - 1) {
#ifdef KEEP_SEEN
			kept[i] = logged[i] && saw[i];
#else
			kept[i] = logged[i];
#endif
			unsaved[i] = false
		};
		if :: kept[START] && runs -> ran = true; promised = true :: else fi;
		torn = false; failed = false
	   }
	   OR_DIE
	   fi
	fi
}

#ifdef REMEMBER_FIRST
#define LOG_AND_SAVE(e) if :: d_step { unsaved[e] = true; logged[e] = true } OR_DIE fi; save(); log_line(e); unsaved[e] = false
#else
#ifdef SAVE_PER_LOOK
#define LOG_AND_SAVE(e) log_line(e)
#else
#define LOG_AND_SAVE(e) log_line(e); save()
#endif
#endif

/* A look at the job: whole, or only at what there was a hint of. */
inline look(whole)
{
	d_step { began = clock; saw[START] = there[START]; if :: there[START] && !there[END] -> runs = true :: else fi };
	if
	:: saw[OTHER] = there[OTHER]
	:: !whole
	fi;
	saw[END] = there[END] && runs;
	if :: saw[START] && !logged[START] -> LOG_AND_SAVE(START) :: else fi;
	if :: saw[OTHER] && !logged[OTHER] -> LOG_AND_SAVE(OTHER) :: else fi;
	if :: saw[END] && !logged[END] -> LOG_AND_SAVE(END) :: else fi;
#ifdef SAVE_PER_LOOK
	save();
#endif
#ifdef BY_TIME
	if :: saw[START] -> if :: until = began - 1 OR_DIE fi :: else fi;
#endif
	began = 0
}

proctype agent(bool mortal)
{
	bool logged[EVENTS], unsaved[EVENTS], saw[EVENTS];
	bool runs;			/* it has seen the job run, or the file says that another has */
	byte i, began;

	d_step {			/* reads the file */
		for (i : 0 .. EVENTS - 1) {
#ifdef BY_TIME
			logged[i] = stamp[i] > 0 && stamp[i] <= until
#else
			logged[i] = kept[i]
#endif
		};
		runs = ran
	};
	do
	:: mortal -> look(false)
	:: mortal -> compact()
	:: goto looks_last
	od;
looks_last:
	if
	:: mortal -> goto dying
	:: !mortal && over -> look(true)
	fi;
	assert(lines[START] > 0);
	assert(!there[OTHER] || lines[OTHER] > 0);
	assert(!there[END] || !promised || lines[END] > 0);
	goto out;
dying:
	atomic {
		/* One line may be logged again for each death, and all that a full disk did not take. */
		if
		:: failed -> allowed = allowed + unsaved[START] + unsaved[OTHER] + unsaved[END]
		:: else -> allowed = allowed + (unsaved[START] || unsaved[OTHER] || unsaved[END])
		fi;
		failed = false;
		deaths++
	};
out:
	atomic { lives = false; i = 0; runs = false }
}

#ifdef SILENT_WRITER
/* One that looks for itself, and has no log, as a page does without an agent. */
active proctype page()
{
end:	there[OTHER] -> kept[OTHER] = true
}
#endif

init
{
	do
	:: deaths < DEATHS -> lives = true; run agent(true); !lives
	:: break
	od;
	lives = true;
	run agent(false);
	!lives
}
