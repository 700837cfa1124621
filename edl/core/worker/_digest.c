/* The same as `sums_of_rows` in digest.py, which tells what it is; without a compiler, that one serves.
 *
 * Numbers of 64 bits wrap around, as there. Words are read as they lie, aligned or not. The GIL is not held meanwhile:
 * the caller keeps the contents from changing.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define WORD ((Py_ssize_t)sizeof(uint64_t))

static uint64_t
word_at(const char *contents, Py_ssize_t index)
{
    uint64_t word;
    memcpy(&word, contents + index * WORD, WORD);
    return word;
}

/* Vectors of newer processors multiply whole words: three times as fast. Which there are is looked up as it is loaded.
 */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

FOR_EACH_PROCESSOR static uint64_t
of_row(const char *contents, Py_ssize_t words, const uint64_t *of_words, const uint64_t *of_halves)
{
    uint64_t even = 0, odd = 0;
    Py_ssize_t at = 0;
    for (; at + 1 < words; at += 2) {
        uint64_t first = word_at(contents, at), second = word_at(contents, at + 1);
        even += first * of_words[at] + (first >> 32) * of_halves[at];
        odd += second * of_words[at + 1] + (second >> 32) * of_halves[at + 1];
    }
    if (at < words) {
        uint64_t last = word_at(contents, at);
        even += last * of_words[at] + (last >> 32) * of_halves[at];
    }
    return even + odd;
}

/* Four rows side by side: each weight is loaded once for all of them. */
FOR_EACH_PROCESSOR static void
of_four_rows(const char *contents, Py_ssize_t row, const uint64_t *of_words, const uint64_t *of_halves, uint64_t *found)
{
    const char *second = contents + row * WORD, *third = second + row * WORD, *fourth = third + row * WORD;
    uint64_t one = 0, two = 0, three = 0, four = 0;
    for (Py_ssize_t at = 0; at < row; at++) {
        uint64_t of_word = of_words[at], of_half = of_halves[at];
        uint64_t a = word_at(contents, at), b = word_at(second, at), c = word_at(third, at), d = word_at(fourth, at);
        one += a * of_word + (a >> 32) * of_half;
        two += b * of_word + (b >> 32) * of_half;
        three += c * of_word + (c >> 32) * of_half;
        four += d * of_word + (d >> 32) * of_half;
    }
    found[0] = one, found[1] = two, found[2] = three, found[3] = four;
}

static void
of_rows(const char *contents, Py_ssize_t words, Py_ssize_t row, const uint64_t *of_words, const uint64_t *of_halves,
        char *digests)
{
    Py_ssize_t begin = 0;
    for (; words - begin >= 4 * row; begin += 4 * row, digests += 4 * WORD) {
        uint64_t found[4];
        of_four_rows(contents + begin * WORD, row, of_words, of_halves, found);
        memcpy(digests, found, sizeof found);
    }
    for (; begin < words; begin += row, digests += WORD) {
        Py_ssize_t here = words - begin < row ? words - begin : row;
        uint64_t digest = of_row(contents + begin * WORD, here, of_words, of_halves);
        memcpy(digests, &digest, WORD);
    }
}

static PyObject *
sums_of_rows(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer contents, of_words, of_halves;
    if (!PyArg_ParseTuple(arguments, "y*y*y*:sums_of_rows", &contents, &of_words, &of_halves)) {
        return NULL;
    }
    PyObject *found = NULL;
    Py_ssize_t row = of_words.len / WORD, words = contents.len / WORD, left = contents.len % WORD;
    if (row == 0 || of_halves.len != of_words.len) {
        PyErr_SetString(PyExc_ValueError, "as many weights of halves as of words, and one at least");
    }
    else {
        Py_ssize_t full = (words + row - 1) / row * WORD;
        found = PyBytes_FromStringAndSize(NULL, full + left);
        if (found != NULL) {
            char *digests = PyBytes_AsString(found);
            Py_BEGIN_ALLOW_THREADS
            of_rows(contents.buf, words, row, of_words.buf, of_halves.buf, digests);
            Py_END_ALLOW_THREADS
            memcpy(digests + full, (const char *)contents.buf + words * WORD, left);
        }
    }
    PyBuffer_Release(&contents);
    PyBuffer_Release(&of_words);
    PyBuffer_Release(&of_halves);
    return found;
}

static PyMethodDef methods[] = {
    {"sums_of_rows", sums_of_rows, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_digest",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__digest(void)
{
    return PyModule_Create(&module);
}
