"""Handwritten digits with Keras.

edl run -np 2 python examples/keras_digits.py
"""

import keras
import numpy as np

keras.utils.disable_interactive_logging()  # no progress bar
table = np.loadtxt("data/digits/digits.csv.gz", delimiter=",", dtype=np.float32)
images, labels = table[:, :64] / 16, table[:, 64].astype(np.int64)
x, y = images[:1500], labels[:1500]
val = (images[1500:], labels[1500:])

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
model.compile(optimizer=keras.optimizers.Adam(0.005), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
model.fit(x, y, batch_size=32, epochs=10, validation_data=val, callbacks=[stop])
loss, accuracy = model.evaluate(*val)
print(f"accuracy {accuracy:.3f}")
