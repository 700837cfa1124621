/* The same as `add_rounded`, `add_all_rounded` and `mean_of` in rounding.py, which tells what they are; without a compiler, those serve.
 *
 * The largest absolute value is looked for among bits without the sign: these have the order of what they stand for,
 * and nan is above all. The GIL is not held meanwhile: the caller keeps the contents from changing.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Vectors of newer processors round several at once. Which there are is looked up as it is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#define WITHOUT_SIGN 0x7fffffff

static double
value_of(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What does not fit is noted, and computed again: any number may stand for it. */
static inline int32_t
whole(float value)
{
    float rounded = rintf(value);
    return rounded > -2147483648.0f && rounded < 2147483648.0f ? (int32_t)rounded : INT32_MIN;
}

FOR_EACH_PROCESSOR static int32_t
begin(const float *source, int32_t *target, Py_ssize_t count, float factor)
{
    int32_t largest = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        int32_t bits;
        memcpy(&bits, source + at, sizeof bits);
        bits &= WITHOUT_SIGN;
        largest = bits > largest ? bits : largest;
        target[at] = whole(source[at] * factor);
    }
    return largest;
}

FOR_EACH_PROCESSOR static int32_t
add(const float *source, int32_t *target, Py_ssize_t count, float factor)
{
    int32_t largest = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        int32_t bits;
        memcpy(&bits, source + at, sizeof bits);
        bits &= WITHOUT_SIGN;
        largest = bits > largest ? bits : largest;
        target[at] = (int32_t)((uint32_t)target[at] + (uint32_t)whole(source[at] * factor));
    }
    return largest;
}

FOR_EACH_PROCESSOR static int32_t
mean(const int32_t *source, float *target, Py_ssize_t count, float factor)
{
    int32_t largest = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        float value = (float)source[at] * factor;
        int32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits &= WITHOUT_SIGN;
        largest = bits > largest ? bits : largest;
        target[at] = value;
    }
    return largest;
}

static PyObject *
over(PyObject *arguments, int has_first, const char *format)
{
    Py_buffer source, target;
    double factor;
    int first = 0;
    int taken = has_first ? PyArg_ParseTuple(arguments, format, &source, &target, &factor, &first)
                          : PyArg_ParseTuple(arguments, format, &source, &target, &factor);
    if (!taken) {
        return NULL;
    }
    PyObject *found = NULL;
    if (source.len != target.len || source.len % (Py_ssize_t)sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "both have as many numbers of 32 bits");
    }
    else {
        Py_ssize_t count = source.len / (Py_ssize_t)sizeof(float);
        int32_t largest;
        Py_BEGIN_ALLOW_THREADS
        largest = !has_first ? mean(source.buf, target.buf, count, (float)factor)
                  : first    ? begin(source.buf, target.buf, count, (float)factor)
                             : add(source.buf, target.buf, count, (float)factor);
        Py_END_ALLOW_THREADS
        found = PyFloat_FromDouble(value_of(largest));
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    return found;
}

static PyObject *
add_rounded(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return over(arguments, 1, "y*w*dp:add_rounded");
}

/* One call for all tensors of a part: with small ones, calls cost more than what they do. */
static PyObject *
add_all_rounded(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *sources, *targets, *factors;
    int first;
    if (!PyArg_ParseTuple(arguments, "O!O!O!p:add_all_rounded", &PyList_Type, &sources, &PyList_Type, &targets,
                          &PyList_Type, &factors, &first)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(sources);
    if (PyList_Size(targets) != count || PyList_Size(factors) != count) {
        PyErr_SetString(PyExc_ValueError, "there are as many of all three");
        return NULL;
    }
    PyObject *found = PyList_New(count);
    PyObject *is_first = first ? Py_True : Py_False;
    for (Py_ssize_t at = 0; found != NULL && at < count; at++) {
        PyObject *each = PyTuple_Pack(4, PyList_GetItem(sources, at), PyList_GetItem(targets, at),
                                      PyList_GetItem(factors, at), is_first);
        PyObject *largest = each == NULL ? NULL : over(each, 1, "y*w*dp:add_all_rounded");
        Py_XDECREF(each);
        if (largest == NULL) {
            Py_CLEAR(found);
        }
        else {
            PyList_SetItem(found, at, largest);
        }
    }
    return found;
}

static PyObject *
mean_of(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return over(arguments, 0, "y*w*d:mean_of");
}

static PyMethodDef methods[] = {
    {"add_rounded", add_rounded, METH_VARARGS, NULL},
    {"add_all_rounded", add_all_rounded, METH_VARARGS, NULL},
    {"mean_of", mean_of, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_rounding",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__rounding(void)
{
    return PyModule_Create(&module);
}
