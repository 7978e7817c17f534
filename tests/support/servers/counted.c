/* Counts the lines of Python that a thread executes, for counted.py. A trace function in C costs
   some tens of nanoseconds for each line, one in Python ten times that. */

typedef void (*note_function)(void *frame);

enum { TRACE_LINE = 2 }; /* PyTrace_LINE */

long long lines;        /* of the callback that runs */
long long lines_before; /* of those before it in the same turn */
long long callback_limit, turn_limit;
note_function note;

/* A Py_tracefunc, called with the lock of the interpreter. */
int count_line(void *self, void *frame, int what, void *argument)
{
    (void)self;
    (void)argument;
    if (what == TRACE_LINE) {
        lines++;
        if (lines == callback_limit || lines + lines_before == turn_limit)
            note(frame);
    }
    return 0;
}
