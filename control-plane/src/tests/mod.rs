mod contract;
mod etcd;
mod experts;
mod faulty;
mod presence;
